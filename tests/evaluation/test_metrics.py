"""Metrics against scikit-learn and scipy, and at the edges where those have no answer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, f1_score, log_loss, root_mean_squared_error

from marl_framework.evaluation import metrics
from marl_framework.mission import accuracy


def random_maps(seed: int, missions: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Beliefs with certain, undecided and in-between cells, unrelated truths, and cells read."""
    generator = torch.Generator().manual_seed(seed)
    shape = (missions, 23, 17)
    belief = torch.rand(shape, generator=generator, dtype=torch.float64)
    special = torch.randint(0, 8, shape, generator=generator)
    for index, value in enumerate((0.0, 1.0, 0.5, 0.501)):
        belief[special == index] = value
    truth = torch.rand(shape, generator=generator) < 0.3
    truth[:, 0, 0], truth[:, 0, 1] = True, False
    return belief, truth, torch.rand(shape, generator=generator) < 0.6


def binned_error(belief: np.ndarray, truth: np.ndarray) -> float:
    """Expected calibration error, bin by bin."""
    total, edges = 0.0, [-1.0, *(k / 10 + 0.001 for k in range(1, 10)), 2.0]
    for low, high in pairwise(edges):
        inside = (belief > low) & (belief <= high)
        if inside.any():
            total += inside.sum() * abs(belief[inside].mean() - truth[inside].mean())
    return total / belief.size


def reference(belief: np.ndarray, truth: np.ndarray, seen: np.ndarray) -> dict[str, float]:
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
        "ece": binned_error(belief[seen], truth[seen]),
        "brier": brier_score_loss(truth[seen], belief[seen]),
    }


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_metrics_equal_scikit_learn_and_scipy(seed: int) -> None:
    belief, truth, seen = random_maps(seed)
    missions = zip(belief, truth, seen, strict=True)
    rows = [reference(*(each.numpy() for each in maps)) for maps in missions]
    found = metrics.map_metrics(belief, truth, seen)
    assert tuple(found) == tuple(rows[0])
    for name, values in found.items():
        np.testing.assert_allclose(values.numpy(), [row[name] for row in rows], rtol=1e-9)
    alone = metrics.roi_entropy(belief, truth)
    torch.testing.assert_close(alone, found["roi_entropy"], rtol=1e-9, atol=0)


def test_single_precision_is_close_to_double() -> None:
    belief, truth, seen = random_maps(1)
    belief[belief == 0.501] = 0.6  # the threshold itself is a matter of rounding
    double = metrics.map_metrics(belief, truth, seen)
    for name, single in metrics.map_metrics(belief.float(), truth, seen).items():
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double[name], rtol=1e-5, atol=1e-6)


def test_a_truth_without_region_of_interest_gives_finite_numbers() -> None:
    belief = torch.full((2, 4, 5), 0.3)
    truth = torch.zeros(2, 4, 5, dtype=torch.bool)
    assert torch.equal(metrics.roi_entropy(belief, truth), torch.zeros(2))
    for name, value in metrics.map_metrics(belief, truth, ~truth).items():
        assert torch.isfinite(value).all(), name
        if name in ("roi_entropy", "f1", "wrmse", "wmll"):
            assert torch.equal(value, torch.zeros(2)), name


def test_many_missions_are_measured_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = random_maps(3, missions=5)
    expected = metrics.map_metrics(*maps)
    monkeypatch.setattr(accuracy, "CPU_CELLS", 2 * maps[0][0].numel())
    for name, values in metrics.map_metrics(*maps).items():
        assert values.shape == (5,)
        torch.testing.assert_close(values, expected[name])


# Reliability ------------------------------------------------------------------------------

COUNTS = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def everywhere(*maps: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Belief and truth of maps whose cells are all read."""
    return *maps, torch.ones_like(maps[1])


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_reliability_does_not_depend_on_cells_that_nobody_read(seed: int) -> None:
    belief, truth, seen = random_maps(seed)
    others = random_maps(seed + 1)
    changed = (
        torch.where(seen, ours, theirs)
        for ours, theirs in zip((belief, truth), others[:2], strict=True)
    )
    found, again = metrics.map_metrics(belief, truth, seen), metrics.map_metrics(*changed, seen)
    for name in ("ece", "brier"):
        torch.testing.assert_close(again[name], found[name])
    assert (again["rmse"] != found["rmse"]).all()


def test_without_a_reading_reliability_is_zero() -> None:
    belief, truth, seen = random_maps(5)
    seen[1] = False
    found = metrics.map_metrics(belief, truth, seen)
    for name in ("ece", "brier"):
        assert (found[name] == 0).tolist() == [False, True, False]


def blocks_of_cells(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 20 cells with belief k / 20, k of them ROI."""
    belief = torch.tensor(counts, dtype=torch.float64)[:, None].expand(-1, 20) / 20
    truth = torch.arange(20) < torch.tensor(counts)[:, None]
    return belief[None].clone(), truth[None]


@given(seed=st.integers(0, 2**32))
def test_the_calibration_error_has_the_bins_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.linspace(0, 1, 11)
    belief = rng.random(300) * 0.097 + 0.002 + rng.choice(edges[:-1], 300)
    belief[:20] = rng.choice(edges, 20)
    truth = rng.random(300) < belief**2
    shares, means = calibration_curve(truth, belief, n_bins=10)
    counts = np.histogram(np.searchsorted(edges[1:-1], belief), np.arange(11))[0]
    expected = (counts[counts > 0] * abs(shares - means)).sum() / 300
    maps = (torch.tensor(values).view(1, 15, 20) for values in (belief, truth))
    found = metrics.calibration_error(*everywhere(*maps))
    assert found.item() == pytest.approx(expected, abs=1e-12)


@given(counts=COUNTS)
def test_beliefs_that_are_as_often_right_as_they_say_have_no_calibration_error(
    counts: list[int],
) -> None:
    belief, truth = blocks_of_cells(counts)
    for maps, tolerance in ((belief, 1e-12), (belief.float(), 1e-7)):
        error = metrics.calibration_error(*everywhere(maps, truth)).item()
        assert error == pytest.approx(0, abs=tolerance)


@given(counts=COUNTS)
def test_a_team_sure_of_what_is_wrong_has_the_largest_errors(counts: list[int]) -> None:
    _, truth = blocks_of_cells(counts)
    found = metrics.map_metrics(*everywhere((~truth).double(), truth))
    assert found["roi_entropy"].item() < 0.002
    assert (found["ece"].item(), found["brier"].item()) == (1, 1)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_reliability_does_not_depend_on_where_cells_lie_or_on_which_class_is_asked(
    seed: int,
) -> None:
    belief, truth, _ = random_maps(seed)
    belief = belief * 0.098 + 0.001 + (belief * 8.99).floor() / 10  # no cell near an edge of a bin
    found = metrics.map_metrics(*everywhere(belief, truth))
    order = torch.randperm(23 * 17, generator=torch.Generator().manual_seed(seed))
    moved = [maps.flatten(1)[:, order].view_as(maps) for maps in (belief, truth)]
    for pair in ((moved[0], moved[1]), (1 - belief, ~truth)):
        for name in ("ece", "brier"):
            torch.testing.assert_close(metrics.map_metrics(*everywhere(*pair))[name], found[name])
    truths = truth.double()
    means = (belief.mean((1, 2)) - truths.mean((1, 2))).abs()
    assert (found["ece"] >= means - 1e-12).all()
    assert (found["ece"] <= (belief - truths).abs().mean((1, 2)) + 1e-12).all()


def test_a_belief_that_is_no_number_has_no_calibration_error() -> None:
    belief, truth, _ = random_maps(4)
    belief[1, 3, 3] = torch.nan
    assert metrics.calibration_error(*everywhere(belief, truth)).isnan().tolist() == [
        False,
        True,
        False,
    ]


def test_rounding_does_not_choose_the_bin_of_contradicting_readings() -> None:
    belief = 0.5 + torch.tensor([[[6e-8, -6e-8]]]).expand(1, 5, 2)
    truth = torch.tensor([[[True, False]]]).expand(1, 5, 2)
    error = metrics.calibration_error(*everywhere(belief, truth)).item()
    assert error == pytest.approx(0, abs=1e-6)
