"""Statistics of every policy in every world of a suite, and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from rich.text import Text
from torch import Tensor

from marl_framework.evaluation import report
from marl_framework.evaluation.statistics import interval

METRICS = {"roi_entropy": -1, "f1": 1}
"""Metrics of the table and the sign of a better value."""
LABELS = {"roi_entropy": "ROI entropy [bit]", "f1": "F1"}


def summary(
    finals: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], blocks: Tensor | None
) -> dict[str, dict[str, Any]]:
    """Return the statistics of every policy and metric in a world, see `statistics` for `blocks`.

    `finals` are training seeds × missions, by policy and metric. The statistics are `mean`, `std`
    over missions (root mean square over seeds), `interval` (95 %, over seeds and missions), `seeds`
    (mean of each), and the `difference` to the best classical planner in that metric. Missing
    values are None.
    """
    found: dict[str, dict[str, Any]] = {policy: {} for policy in finals}
    for metric, sign in METRICS.items():
        values = {
            policy: torch.tensor(each[metric], dtype=torch.float64)
            for policy, each in finals.items()
        }
        means = {p: sign * values[p].mean().item() for p in report.CLASSICAL if p in values}
        best = max(means, key=means.__getitem__) if means else None
        for policy, sample in values.items():
            several = sample.shape[1] > 1
            found[policy][metric] = {
                "mean": sample.mean().item(),
                "std": sample.var(1).mean().sqrt().item() if several else None,
                "interval": interval(sample, blocks),
                "seeds": sample.mean(1).tolist(),
                "difference": None
                if best is None or policy == best
                else difference(sample - values[best], best, sign, blocks),
            }
    return found


def difference(sample: Tensor, reference: str, sign: int, blocks: Tensor | None) -> dict[str, Any]:
    """Return the statistics of paired differences to a reference, training seeds × missions.

    `sign` is 1 where more is better, −1 where less is. The result has `reference`, `mean`,
    `interval` (95 %) and `verdict`: better, worse or undecided.
    """
    ends = interval(sample, blocks)
    verdict = "undecided"
    if ends is not None and (ends[0] > 0 or ends[1] < 0):
        verdict = "better" if sign * ends[0] > 0 else "worse"
    mean = sample.mean().item()
    return {"reference": reference, "mean": mean, "interval": ends, "verdict": verdict}


def table(found: Mapping[str, Any]) -> str:
    """Return the table of `suite.results` as text, a row for each world and policy."""
    changes = ("− best classical [95 %]", "")
    columns = [header for label in LABELS.values() for header in (f"{label} [95 %]", *changes)]
    title = f"Suite {found['suite']} {found['version']}, {_size(found)}"
    drawn = report.new_table(title, ("world", "policy"), columns)
    for name, world in found["worlds"].items():
        for number, (policy, row) in enumerate(world["summary"].items()):
            cells = [cell for metric in METRICS for cell in change_cells(row[metric])]
            drawn.add_row(*map(Text, ("" if number else name, policy, *cells)))
        drawn.add_section()
    lines = [report.as_text(drawn), *_verdicts(found["worlds"])]
    if found["left_out"]:
        lines.append(f"left out: {', '.join(found['left_out'])}")
    return "\n".join(lines) + "\n"


def _size(found: Mapping[str, Any]) -> str:
    missions, standard = found["missions"], found["standard_missions"]
    parts = [f"{missions} missions a world"]
    parts += [f"not the standard {standard}"] if missions != standard else []
    for key, what in (("teams", "training seed"), ("predictors", "predictor")):
        number = len(found[key])
        parts += [f"{number} {what}{'s' if number > 1 else ''}"] if number else []
    seed, standard = found["seed"], found["standard_seed"]
    parts += [f"seed {seed}, not the standard {standard}"] if seed != standard else []
    return ", ".join(parts)


def change_cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a mean, its `difference` and the verdict as text."""
    mean = report.with_interval(row["mean"], row["interval"], digits=3)
    change = row["difference"]
    if change is None:
        return mean, "–", ""
    shown = report.with_interval(change["mean"], change["interval"], "+", digits=3)
    return mean, shown, change["verdict"]


def _verdicts(worlds: Mapping[str, Any]) -> list[str]:
    """Return the verdicts of each policy that is not classical, a line per metric."""
    lines = []
    names = [n for n in next(iter(worlds.values()))["summary"] if n not in report.CLASSICAL]
    for name, (metric, label) in product(names, LABELS.items()):
        rows = [world["summary"][name][metric]["difference"] for world in worlds.values()]
        if verdicts := [row["verdict"] for row in rows if row is not None]:
            lines.append(f"{name}, {label}: {counted(verdicts)}")
    return lines


def counted(verdicts: Sequence[str]) -> str:
    """Return the number of verdicts of each kind as text."""
    return ", ".join(f"{verdicts.count(v)} {v}" for v in ("better", "worse", "undecided"))
