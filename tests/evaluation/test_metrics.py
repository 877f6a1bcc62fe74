"""Metrics against scikit-learn and scipy, and at the edges where those have no answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import f1_score, log_loss, root_mean_squared_error

from marl_framework.evaluation import metrics
from marl_framework.mission import accuracy


def random_maps(seed: int, missions: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Beliefs with certain, undecided and in-between cells, and unrelated truths."""
    generator = torch.Generator().manual_seed(seed)
    shape = (missions, 23, 17)
    belief = torch.rand(shape, generator=generator, dtype=torch.float64)
    special = torch.randint(0, 8, shape, generator=generator)
    for index, value in enumerate((0.0, 1.0, 0.5, 0.501)):
        belief[special == index] = value
    truth = torch.rand(shape, generator=generator) < 0.3
    truth[:, 0, 0], truth[:, 0, 1] = True, False
    return belief, truth


def reference(belief: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    p = belief.clip(1e-4, 1 - 1e-4)
    of_roi = scipy_entropy(np.stack((p[truth], 1 - p[truth])), base=2, axis=0)
    labels = [False, True]
    return {
        "roi_entropy": of_roi.mean(),
        "f1": f1_score(truth.ravel(), belief.ravel() > 0.501),
        "rmse": root_mean_squared_error(truth.ravel().astype(float), belief.ravel()),
        "wrmse": root_mean_squared_error(np.ones(truth.sum()), belief[truth]),
        "mll": log_loss(truth.ravel(), p.ravel(), labels=labels),
        "wmll": log_loss(np.ones(truth.sum(), dtype=bool), p[truth], labels=labels),
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_metrics_equal_scikit_learn_and_scipy(seed: int) -> None:
    belief, truth = random_maps(seed)
    rows = [reference(p.numpy(), t.numpy()) for p, t in zip(belief, truth, strict=True)]
    found = metrics.map_metrics(belief, truth)
    assert tuple(found) == tuple(rows[0])
    for name, values in found.items():
        np.testing.assert_allclose(values.numpy(), [row[name] for row in rows], rtol=1e-9)
    alone = metrics.roi_entropy(belief, truth)
    torch.testing.assert_close(alone, found["roi_entropy"], rtol=1e-9, atol=0)


def test_single_precision_is_close_to_double() -> None:
    belief, truth = random_maps(1)
    belief[belief == 0.501] = 0.6  # the threshold itself is a matter of rounding
    double = metrics.map_metrics(belief, truth)
    for name, single in metrics.map_metrics(belief.float(), truth).items():
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double[name], rtol=1e-5, atol=1e-6)


def test_a_truth_without_region_of_interest_gives_finite_numbers() -> None:
    belief = torch.full((2, 4, 5), 0.3)
    truth = torch.zeros(2, 4, 5, dtype=torch.bool)
    assert torch.equal(metrics.roi_entropy(belief, truth), torch.zeros(2))
    for name, value in metrics.map_metrics(belief, truth).items():
        assert torch.isfinite(value).all(), name
        if name in ("roi_entropy", "f1", "wrmse", "wmll"):
            assert torch.equal(value, torch.zeros(2)), name


def test_many_missions_are_measured_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    belief, truth = random_maps(3, missions=5)
    expected = metrics.map_metrics(belief, truth)
    monkeypatch.setattr(accuracy, "CPU_CELLS", 2 * belief[0].numel())
    for name, values in metrics.map_metrics(belief, truth).items():
        assert values.shape == (5,)
        torch.testing.assert_close(values, expected[name])
