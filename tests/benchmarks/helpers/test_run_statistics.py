"""Statistics over training runs against scipy and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from benchmarks.helpers.run_statistics import probability_of_improvement, runs_iqm


def runs_of(tasks: int, runs: int, seed: int = 0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return shift + torch.randn(tasks, runs, generator=generator, dtype=torch.float64)


def test_the_interquartile_mean_of_runs_and_its_interval_equal_scipys() -> None:
    scores = runs_of(1, 12) ** 3
    found, ends = runs_iqm(scores)
    assert found == pytest.approx(stats.trim_mean(scores[0], 0.25))
    theirs = stats.bootstrap(
        (scores[0].numpy(),),
        lambda x, axis: stats.trim_mean(x, 0.25, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert ends == pytest.approx(tuple(theirs), abs=0.1 * (theirs.high - theirs.low))
    many = runs_of(3, 8)
    assert runs_iqm(many)[0] == pytest.approx(stats.trim_mean(many.flatten(), 0.25))


def test_runs_are_drawn_within_their_task() -> None:
    """With equal runs in each task there is no uncertainty."""
    scores = torch.arange(4.0)[:, None].expand(4, 3)
    found, ends = runs_iqm(scores)
    assert ends == (found, found) == (1.5, 1.5)


def test_the_probability_of_improvement_is_that_of_a_loop_and_of_mann_and_whitney() -> None:
    ours, theirs = runs_of(3, 6, 1, 0.4).round(decimals=1), runs_of(3, 4, 2).round(decimals=1)
    pairs = [(x, y) for k in range(3) for x in ours[k].tolist() for y in theirs[k].tolist()]
    assert any(x == y for x, y in pairs)
    found, _ = probability_of_improvement(ours, theirs)
    assert found == pytest.approx(np.mean([(x > y) + 0.5 * (x == y) for x, y in pairs]))
    u = [stats.mannwhitneyu(x, y).statistic / 24 for x, y in zip(ours, theirs, strict=True)]
    assert found == pytest.approx(np.mean(u))


def test_the_interval_of_the_probability_is_a_stratified_bootstraps() -> None:
    ours, theirs = runs_of(2, 7, 3, 0.3), runs_of(2, 7, 4)
    draw = np.random.default_rng(0)
    estimates = []
    for _ in range(3000):
        x, y = (
            np.stack([row[draw.integers(7, size=7)] for row in scores.numpy()])
            for scores in (ours, theirs)
        )
        estimates.append((x[:, :, None] > y[:, None, :]).mean())
    _, ends = probability_of_improvement(ours, theirs)
    assert ends == pytest.approx(tuple(np.quantile(estimates, (0.025, 0.975))), abs=0.03)


def test_certain_and_single_runs() -> None:
    low, high = runs_of(2, 5), runs_of(2, 5) + 100
    assert probability_of_improvement(high, low) == (pytest.approx(1), pytest.approx((1, 1)))
    assert probability_of_improvement(low, low)[0] == pytest.approx(0.5)
    assert probability_of_improvement(low[:, :1], high)[1] is None
    assert runs_iqm(low[:, :1])[1] is None
    with pytest.raises(ValueError, match="2 with 1"):
        probability_of_improvement(low, high[:1])
