"""Diagnostics of each batch of an update, and their means over batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import select_taken
from marl_framework.algorithms.policy import kl_divergence, policy_entropy
from marl_framework.algorithms.ranks import (
    balanced,
    mean_of,
    means_over_ranks,
    number_of_ranks,
    power_sums,
    variance_over_ranks,
)

_POWER_SUMS = "power_sums"  # targets, residuals, advantages: [3, 3]; only with several ranks


def join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors along the first axis; return a single tensor without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


@torch.no_grad()
def describe_batch(
    batch: Transitions, values: Tensor, probabilities: Tensor, advantages: Tensor
) -> dict[str, Tensor]:
    """Return diagnostics of a batch, keyed by the names in `training.logging.METRICS`.

    `values`, Q(s, ·), and `probabilities`, π, are those before the update, [B, A]; `advantages` are
    those of the actions taken, [B].
    """
    weights, counted = batch.weights, batch.counted
    q = select_taken(values, batch.actions)
    residuals = batch.targets - q
    metrics = {
        "q_taken": mean_of(q, weights),
        "td_error": mean_of(residuals.abs(), weights),
        "advantage": mean_of(advantages, weights),
        "policy_entropy": mean_of(policy_entropy(probabilities), weights),
        "largest_probability": mean_of(probabilities.max(-1).values, weights),
        "kl": mean_of(kl_divergence(batch.old_probabilities, probabilities), weights),
    }
    if batch.teacher is not None:
        metrics["teacher_kl"] = mean_of(kl_divergence(batch.teacher, probabilities), weights)
    if number_of_ranks() == 1 and counted is None:
        lost = min(1, len(batch) - 1)  # a single transition has a variance of 0
        targets = batch.targets.var(correction=lost)
        explained = _explained_variance(residuals.var(correction=lost), targets)
        deviation = advantages.std(correction=lost)
        return metrics | {"explained_variance": explained, "advantage_std": deviation}
    samples = (batch.targets, residuals, advantages)
    sums = torch.stack([power_sums(values, counted) for values in samples])
    if number_of_ranks() > 1:
        return metrics | {_POWER_SUMS: sums}
    return metrics | _spread_metrics(variance_over_ranks(sums).to(q.dtype))


def summarize(records: Sequence[dict[str, Tensor]], flat: Transitions) -> dict[str, Tensor]:
    """Average diagnostics over all batches and ranks; add statistics of the targets.

    A record may lack some names. `flat` holds this rank's transitions of the training step.
    """
    columns: dict[str, list[Tensor]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    sums = columns.pop(_POWER_SUMS, None)
    stats = {name: torch.stack(column).mean() for name, column in columns.items()}
    stats["skipped_updates"] = torch.stack(columns["skipped_updates"]).sum()
    stats["td_target"] = mean_of(flat.targets, balanced(flat.weights))
    if sums is not None:
        stats[_POWER_SUMS] = torch.stack(sums)
    stats = means_over_ranks(stats, {"td_target_std": flat.targets}, flat.counted)
    if sums is not None:
        spreads = _spread_metrics(variance_over_ranks(stats.pop(_POWER_SUMS)))
        stats |= {name: spread.mean() for name, spread in spreads.items()}
    return stats


def _spread_metrics(variances: Tensor) -> dict[str, Tensor]:
    """Return diagnostics that need the variances of targets, residuals and advantages, [..., 3]."""
    targets, residuals, advantages = variances.unbind(-1)
    explained = _explained_variance(residuals, targets)
    return {"explained_variance": explained, "advantage_std": advantages.sqrt()}


def _explained_variance(residuals: Tensor, targets: Tensor) -> Tensor:
    return 1 - residuals / targets.clamp(min=1e-8)
