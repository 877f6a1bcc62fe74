"""How well a belief map tells the truth, for a batch of missions at once.

Every function takes `belief` [E, R, C] (floating point, probability that a cell is of
interest) and `truth` [E, R, C] (bool, True = region of interest, ROI) and returns [E] in the
belief's type, on its device, without reading anything back to the host.

A truth may hold no ROI cell. Means over its ROI cells (`roi_entropy`, `wrmse`,
`wmll`) are then 0, and so is `f1`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from marl_framework.mission.belief import clamp_probability, entropy

FOUND_ABOVE = 0.501
"""A cell counts as found when its probability exceeds this.

Readings that cancel out leave a cell at 0.5 up to rounding; such cells are not found.
"""


def roi_entropy(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the mean entropy of the ROI cells [bit]: how much is left to map."""
    return _mean_over_roi(entropy(belief), truth)


def f1(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the F1 score of the ROI class; a cell is predicted to be ROI above `FOUND_ABOVE`.

    0 when there is neither an ROI cell nor a predicted one.
    """
    found = belief > FOUND_ABOVE
    hits = _count(found & truth).to(belief.dtype)
    predicted_and_real = _count(found) + _count(truth)
    return 2 * hits / predicted_and_real.clamp(min=1).to(belief.dtype)


def rmse(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the root mean squared difference of belief and truth over the whole map."""
    return (belief - truth.to(belief.dtype)).square().mean(dim=(-2, -1)).sqrt()


def wrmse(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the RMSE over the ROI cells alone."""
    return _mean_over_roi((1 - belief).square(), truth).sqrt()


def mll(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the mean log loss over the whole map [nat], lower is better."""
    return -_log_likelihood(belief, truth).mean(dim=(-2, -1))


def wmll(belief: Tensor, truth: Tensor) -> Tensor:
    """Return the mean log loss over the ROI cells alone [nat]."""
    return _mean_over_roi(-_log_likelihood(belief, truth), truth)


def coverage(seen: Tensor) -> Tensor:
    """Return the share of cells some camera has seen, [E] float32, of `seen` [E, R, C] bool."""
    return _count(seen).to(torch.float32) / (seen.shape[-2] * seen.shape[-1])


MAP_METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "roi_entropy": roi_entropy,
    "f1": f1,
    "rmse": rmse,
    "wrmse": wrmse,
    "mll": mll,
    "wmll": wmll,
}
"""All measures of a belief against the truth, by the name they have in tables and files."""

_CPU_CELLS, _GPU_CELLS = 2**18, 2**26  # measured at once


def map_metrics(belief: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """Return all of `MAP_METRICS` at once: the same sums, with each logarithm taken once.

    Missions are measured in groups small enough for the caches of a CPU.
    """
    cells = belief.shape[-2] * belief.shape[-1]
    group = max(1, (_GPU_CELLS if belief.is_cuda else _CPU_CELLS) // cells)
    parts = [
        _measures(belief[first : first + group], truth[first : first + group])
        for first in range(0, len(belief), group)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in MAP_METRICS}


def _measures(belief: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """Return the measures of a few missions."""
    roi = truth.to(belief.dtype)
    weight = roi / _count(truth).clamp(min=1).to(belief.dtype)[:, None, None]
    p = clamp_probability(belief)
    log_p, log_q = p.log(), (1 - p).log()
    likelihoods = torch.where(truth, log_p, log_q)
    errors = (belief - roi).square_()
    entropies = log_q.lerp_(log_p, p)  # p·log p + (1 - p)·log(1 - p)

    def mean_over_roi(values: Tensor) -> Tensor:
        return (values * weight).sum(dim=(-2, -1))

    return {
        "roi_entropy": mean_over_roi(entropies) / -math.log(2),
        "f1": f1(belief, truth),
        "rmse": errors.mean(dim=(-2, -1)).sqrt(),
        "wrmse": mean_over_roi(errors).sqrt(),
        "mll": -likelihoods.mean(dim=(-2, -1)),
        "wmll": -mean_over_roi(likelihoods),
    }


def _count(cells: Tensor) -> Tensor:
    return cells.count_nonzero(dim=(-2, -1))


def _mean_over_roi(values: Tensor, truth: Tensor) -> Tensor:
    total = torch.where(truth, values, torch.zeros_like(values)).sum(dim=(-2, -1))
    return total / _count(truth).clamp(min=1).to(values.dtype)


def _log_likelihood(belief: Tensor, truth: Tensor) -> Tensor:
    p = clamp_probability(belief)
    return torch.where(truth, p, 1 - p).log()
