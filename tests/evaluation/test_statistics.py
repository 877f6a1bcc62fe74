"""Statistics against scipy, and intervals against samples whose mean is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from marl_framework.evaluation.statistics import (
    Difference,
    Statistics,
    _stretch,
    interval,
    paired_difference,
    probability_of_improvement,
    runs_iqm,
    seeds_interval,
    statistics,
    window_blocks,
)


def test_statistics_equal_scipy() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(0))
    found = statistics(values)
    sample = values.double().numpy()
    assert found.mean == pytest.approx(np.mean(sample))
    assert found.std == pytest.approx(np.std(sample, ddof=1))
    assert found.standard_error == pytest.approx(stats.sem(sample))


def test_a_paired_difference_is_what_a_paired_t_test_uses() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = torch.rand(30, generator=generator)
    theirs = ours + 0.1 * torch.randn(30, generator=generator)  # paired far better than unpaired
    found = paired_difference(ours, theirs)
    t = stats.ttest_rel(ours.double().numpy(), theirs.double().numpy()).statistic
    assert found.standard_error is not None
    assert found.mean / found.standard_error == pytest.approx(t)
    with pytest.raises(ValueError, match="cannot pair 30 and 2 missions"):
        paired_difference(ours, theirs[:2])


def test_one_mission_has_no_spread() -> None:
    assert statistics(torch.tensor([0.3])) == Statistics(
        pytest.approx(0.3), None, None, pytest.approx(0.3), None
    )
    difference = paired_difference(torch.tensor([0.3]), torch.tensor([0.1]))
    assert difference == Difference(pytest.approx(0.2), None, None, None)


def test_interquartile_means_and_intervals_equal_scipy() -> None:
    values = torch.rand(43, generator=torch.Generator().manual_seed(4)).double() ** 3
    sample, stretch = values.numpy(), _stretch(43)
    found = statistics(values)
    assert found.iqm == pytest.approx(stats.trim_mean(sample, 0.25))

    def bootstrap(statistic: Callable[..., Any]) -> tuple[float, float]:
        done = stats.bootstrap(
            (sample,),
            statistic,
            n_resamples=4000,
            method="percentile",
            rng=np.random.default_rng(1),
        )
        centre = statistic(sample, axis=0)
        low, high = (centre + stretch * (end - centre) for end in done.confidence_interval)
        return low, high

    of_iqm = bootstrap(lambda x, axis: stats.trim_mean(x, 0.25, axis=axis))
    assert found.iqm_interval == pytest.approx(of_iqm, abs=0.006)
    difference = paired_difference(values, torch.zeros_like(values))
    assert difference.interval == pytest.approx(bootstrap(np.mean), abs=0.006)
    assert statistics(values) == found  # resampling repeats


def share_covered(draw: Callable[[torch.Generator], tuple[Tensor, Tensor | None]]) -> float:
    """Return how often the interval of values and blocks from `draw`, of mean 0, holds 0."""
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(200):
        found = interval(*draw(generator))
        held += found is not None and found[0] <= 0 <= found[1]
    return held / 200


@pytest.mark.parametrize("blocks", [5, 10])
def test_an_interval_over_blocks_covers_and_one_over_missions_is_too_narrow(blocks: int) -> None:
    of = torch.arange(50) % blocks

    def draw(generator: torch.Generator) -> Tensor:
        ground = torch.randn(blocks, generator=generator)
        return (ground[of] + torch.randn(50, generator=generator))[None]

    assert share_covered(lambda generator: (draw(generator), of)) > 0.92
    assert share_covered(lambda generator: (draw(generator), None)) < 0.8


def test_windows_of_a_strip_are_not_as_many_missions() -> None:
    pixels = torch.cartesian_prod(torch.arange(8.0), torch.arange(2.0))  # as large as a window

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ground = torch.randn(16, generator=generator)
        origins = torch.rand(50, 2, generator=generator) * torch.tensor([7.0, 1.0])
        shared = (1 - (origins[:, None] - pixels).abs()).clamp(min=0).prod(-1)  # area of a pixel
        noise = torch.randn(50, generator=generator)
        return (shared @ ground + noise)[None], window_blocks(origins, (1.0, 1.0))

    assert share_covered(draw) > 0.85  # neighbouring blocks share some ground
    assert share_covered(lambda generator: (draw(generator)[0], None)) < 0.75


@pytest.mark.parametrize("seeds", [3, 5])
def test_an_interval_over_seeds_covers_what_other_seeds_would_give(seeds: int) -> None:
    def draw(generator: torch.Generator) -> Tensor:
        skill = 0.3 * torch.randn(seeds, 1, generator=generator)
        missions = torch.randn(50, generator=generator)
        return skill + missions + 0.3 * torch.randn(seeds, 50, generator=generator)

    assert share_covered(lambda generator: (draw(generator), None)) > 0.92
    assert share_covered(lambda generator: (draw(generator).mean(0, keepdim=True), None)) < 0.9


def test_one_seed_without_blocks_is_the_stretched_bootstrap_of_missions() -> None:
    values = torch.rand(37, generator=torch.Generator().manual_seed(2)).double()
    drawn = torch.randint(37, (4000, 37), generator=torch.Generator().manual_seed(0))
    ends = values[drawn].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    ends = values.mean() + (ends - values.mean()) * _stretch(37)
    assert interval(values[None]) == pytest.approx(tuple(ends.tolist()), abs=1e-12)
    assert paired_difference(values, torch.zeros(37)).interval == interval(values[None])


@pytest.mark.parametrize("missions", [4, 6])
def test_an_interval_over_few_missions_covers(missions: int) -> None:
    def draw(generator: torch.Generator) -> tuple[Tensor, None]:
        return torch.randn(1, missions, generator=generator), None

    assert share_covered(draw) > 0.9


def test_a_single_block_has_no_interval() -> None:
    values, block = torch.rand(9), torch.full((9,), 4)
    assert interval(values[None], block) is None
    assert statistics(values, block).standard_error is None
    assert interval(torch.rand(3, 1)) is None


def test_the_standard_error_of_blocks_is_that_of_their_means_where_they_are_equal() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(3)).double()
    found = statistics(values, torch.arange(40) // 8).standard_error
    assert found == pytest.approx(stats.sem(values.view(5, 8).mean(1).numpy()))


@pytest.mark.parametrize("items", [2, 3, 5, 10, 11, 20, 50])
def test_the_stretch_makes_a_bootstrap_as_wide_as_students_interval(items: int) -> None:
    t = stats.t.ppf(0.975, items - 1)
    assert _stretch(items) == pytest.approx((items / (items - 1)) ** 0.5 * t / 1.96, rel=2e-3)


def test_an_interval_over_seeds_alone_is_students() -> None:
    means = [0.3, 0.5, 0.35]
    t = stats.t.interval(0.95, 2, loc=np.mean(means), scale=stats.sem(means))
    assert seeds_interval(means) == pytest.approx(t, rel=1e-3)
    assert seeds_interval([0.3]) is None


def test_windows_whose_corners_lie_in_one_tile_are_a_block() -> None:
    nan = torch.nan
    origins = torch.tensor([[0, 0], [49, 29], [50, 0], [nan, nan], [0, 30], [10, 5], [nan, nan]])
    numbers = window_blocks(origins, (50.0, 30.0))
    same = numbers[:, None] == numbers
    wanted = torch.eye(7, dtype=torch.bool)
    for i, j in ((0, 1), (0, 5), (1, 5)):
        wanted[i, j] = wanted[j, i] = True
    assert torch.equal(same, wanted)


# --- training runs in several tasks ----------------------------------------------------------


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
    assert runs_iqm(runs_of(3, 8))[0] == pytest.approx(
        stats.trim_mean(runs_of(3, 8).flatten(), 0.25)
    )


def test_runs_are_drawn_within_their_task() -> None:
    """Tasks that differ and runs that do not leave nothing to chance."""
    scores = torch.arange(4.0)[:, None].expand(4, 3)
    found, ends = runs_iqm(scores)
    assert ends == (found, found) == (1.5, 1.5)


def test_the_probability_of_improvement_is_that_of_a_loop_and_of_mann_and_whitney() -> None:
    ours, theirs = runs_of(3, 6, 1, 0.4).round(decimals=1), runs_of(3, 4, 2).round(decimals=1)
    wins, ties = 0.0, 0
    for k in range(3):
        for x in ours[k].tolist():
            for y in theirs[k].tolist():
                wins += (x > y) + 0.5 * (x == y)
                ties += x == y
    assert ties > 0
    found, ends = probability_of_improvement(ours, theirs)
    assert found == pytest.approx(wins / (3 * 6 * 4))
    u = [stats.mannwhitneyu(x, y).statistic / 24 for x, y in zip(ours, theirs, strict=True)]
    assert found == pytest.approx(np.mean(u))
    assert ends is not None
    assert 0 <= ends[0] < found < ends[1] <= 1


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


def test_what_is_always_better_is_certain_and_one_run_has_no_interval() -> None:
    low, high = runs_of(2, 5), runs_of(2, 5) + 100
    assert probability_of_improvement(high, low) == (pytest.approx(1), pytest.approx((1, 1)))
    assert probability_of_improvement(low, high)[0] == pytest.approx(0)
    assert probability_of_improvement(low, low)[0] == pytest.approx(0.5)
    assert probability_of_improvement(low[:, :1], high)[1] is None
    assert runs_iqm(low[:, :1])[1] is None
    with pytest.raises(ValueError, match="cannot compare 2 with 1 tasks"):
        probability_of_improvement(low, high[:1])
