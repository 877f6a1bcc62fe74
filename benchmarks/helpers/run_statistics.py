"""Statistics over training runs, with 95 % confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marl_framework.evaluation.report import with_interval
from marl_framework.evaluation.statistics import (
    Interval,
    middle,
    resample_counts,
    student_interval,
    trimmed_mean,
)


def seeds_text(means: Sequence[float], sign: str = "") -> str:
    """Return the mean over training seeds as text, with the `student_interval` if there is one."""
    return with_interval(sum(means) / len(means), student_interval(means), sign, digits=3)


def runs_iqm(scores: Tensor) -> tuple[float, Interval | None]:
    """Return the interquartile mean over tasks and training runs, with its 95 % interval.

    The interval comes from a stratified bootstrap, which draws runs within each task (Agarwal et
    al. 2021, section 4).

    Args:
        scores: scores of S runs in each of K tasks, [K, S].

    Returns:
        Mean and interval; the interval is None for a single run per task.
    """
    sample = scores.detach().double().cpu()
    ones = torch.ones(1, sample.numel(), dtype=sample.dtype)
    iqm = trimmed_mean(sample.flatten(), ones).item()
    counts = _resample_runs(sample, generator_seed=0).flatten(1)
    interval = middle(trimmed_mean(sample.flatten(), counts))
    return iqm, interval if sample.shape[1] > 1 else None


def probability_of_improvement(ours: Tensor, theirs: Tensor) -> tuple[float, Interval | None]:
    """Return the probability that one of our runs scores higher, with its 95 % interval.

    The probability is the mean over tasks of P(X > Y) + P(X = Y) / 2 for our runs X and their runs
    Y (Agarwal et al. 2021, section 4.3). The interval comes from a stratified bootstrap.

    Args:
        ours: scores of S runs in each of K tasks, [K, S]; higher is better.
        theirs: scores of S' runs in each of K tasks, [K, S'].

    Returns:
        Probability and interval; the interval is None if either has a single run per task.

    Raises:
        ValueError: the numbers of tasks differ.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"cannot compare {len(ours)} with {len(theirs)} tasks")
    x, y = (scores.detach().double().cpu() for scores in (ours, theirs))
    difference = x[:, :, None] - y[:, None, :]
    wins = (difference.sign() + 1) / 2 / difference.numel()  # [K, S, S']
    counts = [_resample_runs(sample, seed) for seed, sample in enumerate((x, y))]
    interval = middle(torch.einsum("bks,kst,bkt->b", counts[0], wins, counts[1]))
    return wins.sum().item(), interval if min(x.shape[1], y.shape[1]) > 1 else None


def _resample_runs(scores: Tensor, generator_seed: int) -> Tensor:
    """Return how often each resample draws each run, by task, [B, K, S]."""
    tasks, runs = scores.shape
    drawn = [resample_counts(runs, generator_seed * tasks + k) for k in range(tasks)]
    return torch.stack(drawn, dim=1)
