"""Statistics over missions and training seeds, with 95 % bootstrap confidence intervals.

Missions over overlapping windows of one measured map are not independent: they are resampled in
blocks (`window_blocks`), and the training seeds of a team together with the missions. All
intervals use the same draws, so that policies and metrics are paired.

`blocks` is [E] int64: missions with the same number are resampled together. None resamples each
mission by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

_RESAMPLES = 4000
_TRIMMED = 0.25  # share of missions that the interquartile mean drops at either end
_NORMAL = 1.960
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # for 1 to 9 degrees

Interval = tuple[float, float]


def statistics(values: Tensor, blocks: Tensor | None = None) -> dict[str, Any]:
    """Return the statistics of `values` [E].

    They are `mean`, `std` (divisor n - 1), `standard_error` (of the mean), `iqm` (mean of the
    middle half of the missions) and `iqm_interval` (Agarwal et al. 2021). Spreads are None for a
    single mission.
    """
    sample = values.detach().double().cpu()
    iqm = trimmed_mean(sample, torch.ones_like(sample)[None])
    found = None
    if drawn := _resampled_missions(blocks, len(sample)):
        counts, stretch = drawn
        found = middle(iqm + (trimmed_mean(sample, counts) - iqm) * stretch)
    return {**_moments(sample, blocks), "iqm": iqm.item(), "iqm_interval": found}


def paired_difference(ours: Tensor, theirs: Tensor, blocks: Tensor | None = None) -> dict[str, Any]:
    """Return the statistics of `ours - theirs`, paired by mission; both are [E].

    They are `mean`, `std`, `standard_error` and `interval` (of the mean); spreads are None for a
    single mission. Raises ValueError if their lengths differ.
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

    Each resample draws seeds, and the same missions for all of them. Few seeds, missions or
    blocks underestimate the spread, so deviations get the `bootstrap_stretch`.

    Values are [S, E]: E missions flown by the teams of S training seeds, S = 1 for a planner, or
    paired differences of these. The interval is None for a single mission or block.
    """
    sample = values.detach().double().cpu()
    seeds, missions = sample.shape
    drawn = _resampled_missions(blocks, missions)
    if drawn is None:
        return None
    counts, stretch = drawn
    of_seeds = sample.mean(1, keepdim=True)
    deviations = ((sample @ counts.mT) / counts.sum(1) - of_seeds) * stretch  # [S, B]
    if seeds == 1:
        return middle((of_seeds + deviations)[0])
    centre = of_seeds.mean()
    means = centre + (of_seeds - centre) * bootstrap_stretch(seeds) + deviations
    return middle((means * resample_counts(seeds, generator_seed=1).mT).sum(0) / seeds)


def standard_error(values: Tensor, blocks: Tensor | None = None) -> Tensor | None:
    """Return the standard error of the mean over missions, from sums over blocks, float64.

    Without blocks it is std / sqrt(E). Values are [E, …], the result [...]; it is None for a single
    mission or block.
    """
    sample = values.detach().double().cpu()
    numbers, groups = _numbered(blocks, len(sample))
    if groups < 2:
        return None
    sums = torch.zeros(groups, *sample.shape[1:], dtype=sample.dtype)
    sums.index_add_(0, numbers, sample - sample.mean(0))
    return math.sqrt(groups / (groups - 1)) * sums.norm(dim=0) / len(sample)


def window_blocks(origins: Tensor, extent: tuple[float, float]) -> Tensor:
    """Return the blocks of missions over windows (x, y) of one map, `extent` [m]; [E] int64.

    A block is a tile of the map as large as a window: windows overlap where their lower left
    corners, `origins` [E, 2] [m], lie in one tile. Windows of neighbouring tiles may still overlap
    in part. A mission over other ground, at NaN, is a separate block.
    """
    tiles = (origins.double().cpu() / torch.tensor(extent, dtype=torch.float64)).floor()
    separate = -1.0 - torch.arange(len(tiles), dtype=torch.float64)
    tiles = torch.where(tiles.isnan().any(1, keepdim=True), separate[:, None], tiles)
    return tiles.unique(dim=0, return_inverse=True)[1]


def _numbered(blocks: Tensor | None, missions: int) -> tuple[Tensor, int]:
    """Return blocks numbered from 0 without gaps, [E], and their number."""
    if blocks is None:
        return torch.arange(missions), missions
    groups, numbers = blocks.cpu().unique(return_inverse=True)
    return numbers, len(groups)


def _resampled_missions(blocks: Tensor | None, missions: int) -> tuple[Tensor, float] | None:
    """Return draws of each mission, [B, E], and their `bootstrap_stretch`; None for one block."""
    numbers, groups = _numbered(blocks, missions)
    if groups < 2:
        return None
    return resample_counts(groups, generator_seed=0)[:, numbers], bootstrap_stretch(groups)


def resample_counts(items: int, generator_seed: int) -> Tensor:
    """Return the number of draws of each item in each resample, [B, items] float64."""
    generator = torch.Generator().manual_seed(generator_seed)
    drawn = torch.randint(items, (_RESAMPLES, items), generator=generator)
    counts = torch.zeros(_RESAMPLES, items, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def bootstrap_stretch(items: int) -> float:
    """Return the ratio of Student's interval of a mean to the bootstrap's."""
    return math.sqrt(items / (items - 1)) * student_quantile(items - 1) / _NORMAL


def student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's distribution, to three digits."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    return _NORMAL + 2.3722 / degrees + 2.8225 / degrees**2 + 2.5558 / degrees**3


def student_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's 95 % interval of the mean of some values; None for a single one."""
    if len(values) < 2:
        return None
    half = student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def trimmed_mean(sample: Tensor, counts: Tensor) -> Tensor:
    """Return the interquartile mean of each resample of `sample` [E], from `counts` [B, E]."""
    order = sample.argsort()
    below = counts[:, order].cumsum(1)
    cut = (_TRIMMED * below[:, -1:]).floor()
    last = below[:, -1:] - cut
    kept = below.minimum(last).maximum(cut).diff(dim=1, prepend=cut)
    return (kept * sample[order]).sum(1) / (last - cut).squeeze(1)


def middle(estimates: Tensor) -> Interval:
    """Return the middle 95 % of bootstrap estimates [B]."""
    low, high = estimates.quantile(torch.tensor([0.025, 0.975], dtype=estimates.dtype)).tolist()
    return low, high
