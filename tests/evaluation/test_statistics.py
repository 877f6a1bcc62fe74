"""Statistics against scipy, and intervals against samples whose mean is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from marl_framework.evaluation.statistics import (
    bootstrap_stretch,
    interval,
    paired_difference,
    statistics,
    student_quantile,
    window_blocks,
)


def test_statistics_equal_scipy() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(0))
    found = statistics(values)
    sample = values.double().numpy()
    assert found["mean"] == pytest.approx(np.mean(sample))
    assert found["std"] == pytest.approx(np.std(sample, ddof=1))
    assert found["standard_error"] == pytest.approx(stats.sem(sample))


def test_a_paired_difference_is_what_a_paired_t_test_uses() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = torch.rand(30, generator=generator)
    theirs = ours + 0.1 * torch.randn(30, generator=generator)  # paired far better than unpaired
    found = paired_difference(ours, theirs)
    t = stats.ttest_rel(ours.double().numpy(), theirs.double().numpy()).statistic
    assert found["mean"] / found["standard_error"] == pytest.approx(t)
    with pytest.raises(ValueError, match="30 and 2"):
        paired_difference(ours, theirs[:2])


def test_quantiles_are_students() -> None:
    for degrees in range(1, 200):
        assert student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=5e-4)


def test_one_mission_has_no_spread() -> None:
    nothing = {"std": None, "standard_error": None}
    mean = pytest.approx(0.3)
    expected = {"mean": mean, **nothing, "iqm": mean, "iqm_interval": None}
    assert statistics(torch.tensor([0.3])) == expected
    difference = paired_difference(torch.tensor([0.3]), torch.tensor([0.1]))
    assert difference == {"mean": pytest.approx(0.2), **nothing, "interval": None}


def test_interquartile_means_and_intervals_equal_scipy() -> None:
    values = torch.rand(43, generator=torch.Generator().manual_seed(4)).double() ** 3
    sample, stretch = values.numpy(), bootstrap_stretch(43)
    found = statistics(values)
    assert found["iqm"] == pytest.approx(stats.trim_mean(sample, 0.25))

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
    assert found["iqm_interval"] == pytest.approx(of_iqm, abs=0.006)
    difference = paired_difference(values, torch.zeros_like(values))
    assert difference["interval"] == pytest.approx(bootstrap(np.mean), abs=0.006)
    assert statistics(values) == found  # resampling repeats


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("blocks", [5, None])
def test_an_interval_resamples_seeds_together_with_blocks(seeds: int, blocks: int | None) -> None:
    """Against means of drawn copies; deviations of blocks and of seeds are stretched apart."""
    values = torch.rand(seeds, 20, generator=torch.Generator().manual_seed(3)).double()
    members = torch.arange(20).view(-1, blocks or 20).T  # [blocks, missions of each]
    draws = torch.randint(len(members), (4000, len(members)), generator=torch.manual_seed(0))
    again = torch.randint(seeds, (4000, seeds), generator=torch.manual_seed(1))
    own = values.mean(1, keepdim=True)
    apart = (own - own.mean()) * (bootstrap_stretch(seeds) if seeds > 1 else 1.0)
    copies = values[:, members[draws].flatten(1)].mean(2)
    means = own.mean() + apart + (copies - own) * bootstrap_stretch(len(members))
    estimates = means.gather(0, again.T).mean(0)
    ends = estimates.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    found = interval(values, torch.arange(20) % blocks if blocks else None)
    assert found == pytest.approx(tuple(ends.tolist()), abs=1e-9)


def test_a_single_block_has_no_interval() -> None:
    values, block = torch.rand(9), torch.full((9,), 4)
    assert interval(values[None], block) is None
    assert statistics(values, block)["standard_error"] is None
    assert interval(torch.rand(3, 1)) is None


def test_the_standard_error_of_blocks_is_that_of_their_means_where_they_are_equal() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(3)).double()
    found = statistics(values, torch.arange(40) // 8)["standard_error"]
    assert found == pytest.approx(stats.sem(values.view(5, 8).mean(1).numpy()))


def test_windows_whose_corners_lie_in_one_tile_are_a_block() -> None:
    nan = torch.nan
    origins = torch.tensor([[0, 0], [49, 29], [50, 0], [nan, nan], [0, 30], [10, 5], [nan, nan]])
    numbers = window_blocks(origins, (50.0, 30.0))
    same = numbers[:, None] == numbers
    wanted = torch.eye(7, dtype=torch.bool)
    for i, j in ((0, 1), (0, 5), (1, 5)):
        wanted[i, j] = wanted[j, i] = True
    assert torch.equal(same, wanted)
