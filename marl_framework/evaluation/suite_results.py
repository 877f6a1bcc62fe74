"""Results of a suite: statistics of its flights against classical planners, and their tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from textwrap import shorten
from typing import Any

import torch
from rich.text import Text
from torch import Tensor

from marl_framework.config.parts import LEARNED
from marl_framework.evaluation import report
from marl_framework.evaluation.flight import COMPLETED
from marl_framework.evaluation.statistics import Interval, interval, worst_tenth
from marl_framework.evaluation.suite import SEARCH, SIGNS, Flyer, Suite, digest
from marl_framework.evaluation.worlds import MISSIONS, SEED, VERSION, left_out
from marl_framework.runs.folder import describe_environment

LABELS = {metric: report.LABELS[metric] for metric in report.METRICS}


def results(suite: Suite, flown: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of `suite.json`, in plain types.

    `worlds.<name>` has the keys `definition`, `completion` (of maps), `blocks` (block number of
    each mission), `finals.<policy>.<metric>` (training seeds × missions, after the last move) and
    `summary.<policy>.<metric>` (see `summary`).
    """
    policies: dict[str, list[Flyer]] = {}
    for flyer in suite.flyers:
        policies.setdefault(flyer.policy, []).append(flyer)
    worlds = {}
    for name, content in flown.items():
        flights = {
            policy: {m: [content["flights"][f.key][m] for f in group] for m in SIGNS}
            for policy, group in policies.items()
        }
        blocks = content["blocks"]
        worlds[name] = {
            "definition": content["world"],
            "completion": content["completion"],
            "blocks": blocks,
            "summary": summary(flights, None if blocks is None else torch.tensor(blocks)),
            "finals": flights,
        }
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return {
        "schema": 1,
        "suite": suite.name,
        "version": VERSION,
        "missions": suite.missions,
        "standard_missions": MISSIONS,
        "seed": suite.seed,
        "standard_seed": SEED,
        "teams": _trainings(policies.get(LEARNED, ())),
        "predictors": _trainings(policies.get(SEARCH, ())),
        "left_out": left_out(suite.name, flown),
        "machine": describe_environment(suite.device) | {"command": command},
        "worlds": worlds,
    }


def _trainings(group: Sequence[Flyer]) -> list[dict[str, Any]]:
    checkpoints = [flyer.checkpoint for flyer in group if flyer.checkpoint is not None]
    return [
        {
            "checkpoint": checkpoint.name,
            "sha256": digest(checkpoint),
            "title": config.experiment.title,
            "seed": config.environment.seed,
            "training_step": checkpoint.payload.get("training_step"),
        }
        for checkpoint, config in ((each, each.config()) for each in checkpoints)
    ]


def summary(
    finals: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], blocks: Tensor | None
) -> dict[str, dict[str, Any]]:
    """Return the statistics of every policy and metric in a world.

    `finals`: values by policy and metric, training seeds × missions. `blocks`: see `statistics`.
    The keys are `mean`, `std` over missions (root mean square over seeds), `interval` (95 %, over
    seeds and missions), `seeds` (mean of each seed), and `difference` to the best classical planner
    in that metric. `report.METRICS` also have `worst_tenth`, with `mean`, `interval` and
    `difference` to the classical planner with the best worst tenth. Missing values are None.
    """
    result: dict[str, dict[str, Any]] = {policy: {} for policy in finals}
    for metric in next(iter(finals.values())):
        sign = SIGNS[metric]
        values = {p: torch.tensor(f[metric], dtype=torch.float64) for p, f in finals.items()}
        for policy, sample in values.items():
            result[policy][metric] = {
                "mean": sample.mean().item(),
                "std": sample.var(1).mean().sqrt().item() if sample.shape[1] > 1 else None,
                "interval": interval(sample, blocks),
                "seeds": sample.mean(1).tolist(),
            }
        _add_differences({p: rows[metric] for p, rows in result.items()}, values, sign, blocks)
        if metric in report.METRICS:
            worst = {p: worst_tenth(sample, sign, blocks) for p, sample in values.items()}
            _add_differences(worst, values, sign, blocks, True)
            for policy, row in worst.items():
                result[policy][metric]["worst_tenth"] = row
    return result


def _add_differences(
    rows: Mapping[str, dict[str, Any]],
    values: Mapping[str, Tensor],
    sign: int,
    blocks: Tensor | None,
    worst: bool = False,
) -> None:
    """Add each policy's difference to the best classical planner; see `difference`."""
    best = best_classical({policy: row["mean"] for policy, row in rows.items()}, sign)
    for policy, row in rows.items():
        row["difference"] = None
        if best is not None and policy != best:
            row["difference"] = difference(values[policy], values[best], best, sign, blocks, worst)


def best_classical(means: Mapping[str, float], sign: int) -> str | None:
    """Return the classical planner with the best mean; None if there is none."""
    flown = [policy for policy in report.CLASSICAL if policy in means]
    return max(flown, key=lambda policy: sign * means[policy], default=None)


def difference(
    ours: Tensor,
    theirs: Tensor,
    reference: str,
    sign: int,
    blocks: Tensor | None,
    worst: bool = False,
) -> dict[str, Any]:
    """Return the statistics of differences between two policies, paired by mission.

    `ours` and `theirs`: training seeds × missions, one row for a planner. `sign`: 1 if higher is
    better, −1 if lower is better. `worst`: compare `worst_tenth` instead of means. The keys are
    `reference`, `mean`, `interval` (95 %) and `verdict` (better, worse or undecided).
    """
    if worst:
        change = worst_tenth(ours, sign, blocks, theirs)
    else:
        paired = ours - theirs
        change = {"mean": paired.mean().item(), "interval": interval(paired, blocks)}
    return {"reference": reference, **change, "verdict": verdict(change["interval"], sign)}


def verdict(ends: Interval | None, sign: int) -> str:
    """Return better, worse or undecided, for a difference's interval; `sign` as in `difference`."""
    if ends is None or ends[0] <= 0 <= ends[1]:
        return "undecided"
    return "better" if sign * ends[0] > 0 else "worse"


def table(results: Mapping[str, Any]) -> str:
    """Return the tables of `results` as text, with one row per world and policy.

    The second table has the worst tenth of missions and the reliability of beliefs, the third the
    completed maps.
    """
    title = f"Suite {results['suite']} {results['version']}, {_describe_size(results)}"
    labels = [f"{label} [95 %]" for label in LABELS.values()]
    worlds, main = results["worlds"], report.METRICS
    text = _draw_table(title, labels, worlds, lambda row: [row[m] for m in main], True)

    reliability = [metric for metric in SIGNS if metric not in {*main, *COMPLETED}]
    title = "Worst tenth of the missions, and reliability of the beliefs [95 %]"
    labels = ["ROI entropy, worst tenth", "F1, worst tenth"]
    labels += [report.LABELS[metric] for metric in reliability]

    def ends(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [*(row[m]["worst_tenth"] for m in main), *(row[m] for m in reliability)]

    text += _draw_table(title, labels, worlds, ends)
    labels = [report.LABELS[of] for of in COMPLETED.values()]
    text += _draw_table(
        "Completed maps [95 %]", labels, worlds, lambda row: [row[m] for m in COMPLETED]
    )
    lines = [text, *_count_verdicts(worlds)]
    if left := results["left_out"]:
        names = shorten(", ".join(left), 100, placeholder=" …")
        lines.append(f"worlds left out, {len(left)}: {names}")
    return "\n".join(lines) + "\n"


def _draw_table(
    title: str,
    labels: Sequence[str],
    worlds: Mapping[str, Any],
    statistics: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    with_changes: bool = False,
) -> str:
    """Return a table of means and verdicts, and of the differences behind them, as text.

    `statistics` returns those of each label from a policy's summary in a world.
    """
    shown = slice(None, None, 1 if with_changes else 2)
    columns = [name for label in labels for name in (label, "− best classical [95 %]", "")[shown]]
    drawn = report.new_table(title, ("world", "policy"), columns)
    for name, world in worlds.items():
        for number, (policy, row) in enumerate(world["summary"].items()):
            cells = [cell for each in statistics(row) for cell in change_cells(each)[shown]]
            drawn.add_row(*map(Text, ("" if number else name, policy, *cells)))
        drawn.add_section()
    return report.as_text(drawn)


def _describe_size(results: Mapping[str, Any]) -> str:
    missions, standard = results["missions"], results["standard_missions"]
    parts = [f"{missions} missions a world"]
    parts += [f"not the standard {standard}"] if missions != standard else []
    for key, noun in (("teams", "training seed"), ("predictors", "predictor")):
        number = len(results[key])
        parts += [f"{number} {noun}{'s' if number > 1 else ''}"] if number else []
    seed, standard = results["seed"], results["standard_seed"]
    parts += [f"seed {seed}, not the standard {standard}"] if seed != standard else []
    return ", ".join(parts)


def change_cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the mean, the difference to the reference and the verdict as text."""
    mean = report.with_interval(row["mean"], row["interval"], digits=3)
    change = row["difference"]
    if change is None:
        return mean, "–", ""
    difference_text = report.with_interval(change["mean"], change["interval"], "+", digits=3)
    return mean, difference_text, change["verdict"]


def _count_verdicts(worlds: Mapping[str, Any]) -> list[str]:
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
