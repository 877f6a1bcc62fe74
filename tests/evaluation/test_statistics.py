"""Statistics against scipy, and intervals against samples whose mean is known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from marl_framework.evaluation.statistics import (
    bootstrap_stretch,
    interval,
    paired_difference,
    statistics,
    student_quantile,
    tail_mean,
    window_blocks,
    worst_tenth,
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


# The worst tenth ---------------------------------------------------------------------------

SAMPLES = st.lists(st.floats(-100, 100), min_size=1, max_size=60)


def alone(values: list[float], share: float = 0.1) -> float:
    sample = torch.tensor(values, dtype=torch.float64)
    return tail_mean(sample, torch.ones(1, len(values), dtype=torch.float64), share).item()


@given(values=SAMPLES, share=st.floats(0.01, 1))
def test_a_tail_is_the_conditional_value_at_risk(values: list[float], share: float) -> None:
    """By the minimum of Rockafellar and Uryasev, which lies at one of the values."""
    losses = -np.array(values)
    risks = [z + np.maximum(losses - z, 0).mean() / share for z in losses]
    assert alone(values, share) == pytest.approx(-min(risks), abs=1e-9)


@given(values=SAMPLES, shift=st.floats(-10, 10), scale=st.floats(0.1, 10))
def test_a_tail_lies_between_the_worst_value_and_the_mean(
    values: list[float], shift: float, scale: float
) -> None:
    tails = [alone(values, share) for share in (0.01, 0.1, 0.4, 1.0)]
    assert all(low <= high + 1e-9 for low, high in pairwise(tails))
    assert tails[0] == pytest.approx(min(values), abs=1e-9)
    assert tails[-1] == pytest.approx(np.mean(values), abs=1e-9)
    changed = [scale * value + shift for value in values]
    assert alone(changed) == pytest.approx(scale * alone(values) + shift, abs=1e-8)
    assert alone(values[::-1]) == pytest.approx(alone(values), abs=1e-9)


def test_the_worst_tenth_is_the_mean_of_so_many_missions() -> None:
    values = torch.rand(2, 30, generator=torch.Generator().manual_seed(5))
    ordered = values.sort(1).values.double()
    assert worst_tenth(values, 1)["mean"] == pytest.approx(ordered[:, :3].mean().item())
    assert worst_tenth(values, -1)["mean"] == pytest.approx(ordered[:, -3:].mean().item())
    fewer = ordered[:1, :25]  # 2 missions and a half
    expected = (fewer[0, 0] + fewer[0, 1] + fewer[0, 2] / 2).item() / 2.5
    assert worst_tenth(fewer, 1)["mean"] == pytest.approx(expected)
    assert worst_tenth(fewer[:, :1], 1) == {"mean": pytest.approx(fewer[0, 0]), "interval": None}


@pytest.mark.parametrize(("seeds", "others"), [(1, 0), (1, 1), (3, 0), (3, 1), (3, 3)])
@pytest.mark.parametrize("blocks", [5, None])
def test_a_worst_tenth_resamples_the_same_missions_of_both(
    seeds: int, blocks: int | None, others: int
) -> None:
    """Against drawn copies, sorted one by one."""
    generator = torch.Generator().manual_seed(6)
    ours = torch.rand(seeds, 20, generator=generator).double()
    theirs = torch.rand(others, 20, generator=generator).double() if others else None
    members = torch.arange(20).view(-1, blocks or 20).T
    draws = torch.randint(len(members), (4000, len(members)), generator=torch.manual_seed(0))
    again = torch.randint(seeds, (4000, seeds), generator=torch.manual_seed(1))

    def worst(values: torch.Tensor, missions: torch.Tensor) -> torch.Tensor:
        return values[:, missions].sort(-1, descending=True).values[..., :2].mean(-1)

    def estimate(missions: torch.Tensor) -> torch.Tensor:
        found = worst(ours, missions)
        return found if theirs is None else found - worst(theirs, missions)

    own = estimate(torch.arange(20)[None])
    apart = (own - own.mean()) * (bootstrap_stretch(seeds) if seeds > 1 else 1.0)
    copies = estimate(members[draws].flatten(1))
    means = own.mean() + apart + (copies - own) * bootstrap_stretch(len(members))
    ends = means.gather(0, again.T).mean(0).quantile(torch.tensor([0.025, 0.975], dtype=own.dtype))
    found = worst_tenth(ours, -1, torch.arange(20) % blocks if blocks else None, theirs)
    assert found["mean"] == pytest.approx(own.mean().item())
    assert found["interval"] == pytest.approx(tuple(ends.tolist()), abs=1e-9)


def test_a_policy_has_no_difference_to_itself() -> None:
    values = torch.rand(3, 40)
    assert worst_tenth(values, 1, None, values) == {"mean": 0, "interval": (0, 0)}
