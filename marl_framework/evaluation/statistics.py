"""Statistics over missions and training seeds, with 95 % bootstrap confidence intervals.

Missions over overlapping windows of one measured map are not independent, so they are resampled
in blocks (`window_blocks`). A team's training seeds are resampled together with the missions. All
intervals use the same draws, so that policies and metrics are paired.

`blocks` is [E] int64: missions with the same number are resampled together. With None, each
mission is resampled independently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

_RESAMPLES = 4000
_TRIMMED = 0.25  # share of missions that the interquartile mean drops at either end
_TAIL = 0.1  # share of missions in the worst tenth
_NORMAL = 1.960  # 97.5 % quantile of the normal distribution
# 97.5 % quantiles of Student's distribution with 1 to 9 degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Interval = tuple[float, float]


def statistics(values: Tensor, blocks: Tensor | None = None) -> dict[str, Any]:
    """Return the statistics of `values` [E].

    The keys are `mean`, `std` (divisor n - 1), `standard_error` (of the mean), `iqm` (mean of the
    middle half of the missions) and `iqm_interval` (Agarwal et al. 2021). Spreads are None for a
    single mission.
    """
    sample = values.detach().double().cpu()
    iqm, iqm_interval = _bootstrap(
        lambda counts: trimmed_mean(sample, counts)[None], len(sample), blocks
    )
    return {**_moments(sample, blocks), "iqm": iqm, "iqm_interval": iqm_interval}


def paired_difference(ours: Tensor, theirs: Tensor, blocks: Tensor | None = None) -> dict[str, Any]:
    """Return the statistics of `ours - theirs`, paired by mission; both are [E].

    The keys are `mean`, `std`, `standard_error` and `interval` (of the mean). Spreads are None for
    a single mission. Raises ValueError if `ours` and `theirs` differ in length.
    """
    if ours.shape != theirs.shape:
        raise ValueError(f"cannot pair {len(ours)} and {len(theirs)} missions")
    sample = (ours.detach().double() - theirs.detach().double()).cpu()
    return {**_moments(sample, blocks), "interval": interval(sample[None], blocks)}


def _moments(sample: Tensor, blocks: Tensor | None) -> dict[str, float | None]:
    error = standard_error(sample, blocks)
    return {
        "mean": sample.mean().item(),
        "std": sample.std().item() if len(sample) > 1 else None,
        "standard_error": None if error is None else error.item(),
    }


def interval(values: Tensor, blocks: Tensor | None = None) -> Interval | None:
    """Return the 95 % bootstrap interval of the mean over training seeds and missions.

    Each resample draws seeds, and the same missions for all drawn seeds. A bootstrap over few
    seeds, missions or blocks underestimates the spread; `bootstrap_stretch` corrects deviations.

    `values` or paired differences, [S, E]: E missions flown by teams of S training seeds, S = 1
    for a planner. Returns None for a single mission or block.
    """
    sample = values.detach().double().cpu()
    return _bootstrap(lambda counts: sample @ counts.mT / counts.sum(1), sample.shape[1], blocks)[1]


def worst_tenth(
    values: Tensor, sign: int, blocks: Tensor | None = None, reference: Tensor | None = None
) -> dict[str, Any]:
    """Return the mean of the worst tenth of missions, averaged over training seeds.

    This is the conditional value at risk at 0.1 (Rockafellar and Uryasev 2000). The worst tenth
    of E missions are the E / 10 worst ones; one of them counts in part if 10 does not divide E.

    Args:
        values: as for `interval`, [S, E].
        sign: 1 if higher is better, −1 if lower is better.
        blocks: see above.
        reference: values of another policy on the same missions, [S, E] or [1, E]. If given, the
            result is the difference between the worst tenths; the worst missions may differ.

    Returns:
        `mean` and its `interval` (95 %, with the draws of `interval`; None for a single mission or
        block).
    """
    sample = values.detach().double().cpu()
    other = None if reference is None else reference.detach().double().cpu()

    def estimate(counts: Tensor) -> Tensor:
        worst = _worst_means(sample, sign, counts)
        return worst if other is None else worst - _worst_means(other, sign, counts)

    mean, ends = _bootstrap(estimate, sample.shape[1], blocks)
    return {"mean": mean, "interval": ends}


def _worst_means(sample: Tensor, sign: int, counts: Tensor) -> Tensor:
    """Return the worst tenths of each seed [S] in each resample, [S, B]."""
    return torch.stack([sign * tail_mean(sign * seed, counts) for seed in sample])


def _bootstrap(
    estimate: Callable[[Tensor], Tensor], missions: int, blocks: Tensor | None
) -> tuple[float, Interval | None]:
    """Return an estimate, averaged over training seeds, and its 95 % bootstrap interval.

    `estimate` maps draw counts of missions, [B, E], to [S, B], for S seeds.
    """
    own = estimate(torch.ones(1, missions, dtype=torch.float64))  # [S, 1]
    centre, seeds = own.mean(), len(own)
    numbers, groups = _number_blocks(blocks, missions)
    if groups < 2:
        return centre.item(), None
    counts = resample_counts(groups, generator_seed=0)[:, numbers]
    deviations = (estimate(counts) - own) * bootstrap_stretch(groups)  # [S, B]
    if seeds == 1:
        return centre.item(), middle((own + deviations)[0])
    means = centre + (own - centre) * bootstrap_stretch(seeds) + deviations
    drawn = resample_counts(seeds, generator_seed=1).mT
    return centre.item(), middle((means * drawn).sum(0) / seeds)


def standard_error(values: Tensor, blocks: Tensor | None = None) -> Tensor | None:
    """Return the standard error of the mean over missions, from sums over blocks, float64.

    Maps `values` [E, ...] to [...]. Without blocks the result is std / sqrt(E). Returns None for a
    single mission or block.
    """
    sample = values.detach().double().cpu()
    numbers, groups = _number_blocks(blocks, len(sample))
    if groups < 2:
        return None
    sums = torch.zeros(groups, *sample.shape[1:], dtype=sample.dtype)
    sums.index_add_(0, numbers, sample - sample.mean(0))
    return math.sqrt(groups / (groups - 1)) * sums.norm(dim=0) / len(sample)


def window_blocks(origins: Tensor, extent: tuple[float, float]) -> Tensor:
    """Return the block of each mission over a window of one measured map, [E] int64.

    A block is a tile of the map with the window's size `extent` (x, y) [m]. Windows overlap if
    their lower left corners, `origins` [E, 2] [m], lie in one tile. Windows of neighbouring tiles
    may also overlap in part. A mission on other terrain (origin NaN) is a separate block.
    """
    tiles = (origins.double().cpu() / torch.tensor(extent, dtype=torch.float64)).floor()
    separate = -1.0 - torch.arange(len(tiles), dtype=torch.float64)
    tiles = torch.where(tiles.isnan().any(1, keepdim=True), separate[:, None], tiles)
    return tiles.unique(dim=0, return_inverse=True)[1]


def _number_blocks(blocks: Tensor | None, missions: int) -> tuple[Tensor, int]:
    """Return block numbers from 0 without gaps, [E], and the number of blocks."""
    if blocks is None:
        return torch.arange(missions), missions
    groups, numbers = blocks.cpu().unique(return_inverse=True)
    return numbers, len(groups)


def resample_counts(items: int, generator_seed: int) -> Tensor:
    """Return the number of draws of each item in each resample, [B, items] float64."""
    generator = torch.Generator().manual_seed(generator_seed)
    drawn = torch.randint(items, (_RESAMPLES, items), generator=generator)
    counts = torch.zeros(_RESAMPLES, items, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def bootstrap_stretch(items: int) -> float:
    """Return the ratio of Student's interval to the bootstrap interval of a mean."""
    return math.sqrt(items / (items - 1)) * student_quantile(items - 1) / _NORMAL


def student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's distribution, to three decimals."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    return _NORMAL + 2.3722 / degrees + 2.8225 / degrees**2 + 2.5558 / degrees**3


def student_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's 95 % interval of the mean; None for a single value."""
    if len(values) < 2:
        return None
    half = student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def trimmed_mean(sample: Tensor, counts: Tensor) -> Tensor:
    """Return the interquartile mean of `sample` [E] in each resample, given `counts` [B, E]."""
    drawn = counts.sum(1, keepdim=True)
    cut = (_TRIMMED * drawn).floor()
    return _mean_of_ranks(sample, counts, cut, drawn - cut)


def tail_mean(sample: Tensor, counts: Tensor, share: float = _TAIL) -> Tensor:
    """Return the mean of the lowest `share` of `sample` [E] in each resample, [B].

    `counts` are [B, E]. The mean is exact: the last value counts with the weight that is left.
    """
    last = share * counts.sum(1, keepdim=True)
    return _mean_of_ranks(sample, counts, torch.zeros_like(last), last)


def _mean_of_ranks(sample: Tensor, counts: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the mean of the sorted `sample` [E] between two ranks [B, 1], in each resample."""
    order = sample.argsort()
    kept = counts[:, order].cumsum(1).minimum(last).maximum(first).diff(dim=1, prepend=first)
    return (kept * sample[order]).sum(1) / (last - first).squeeze(1)


def middle(estimates: Tensor) -> Interval:
    """Return the middle 95 % of bootstrap estimates [B]."""
    low, high = estimates.quantile(torch.tensor([0.025, 0.975], dtype=estimates.dtype)).tolist()
    return low, high
