"""Report of an evaluation: text tables and the content of `results.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import product
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from marl_framework.evaluation.flight import FlightRecord
from marl_framework.evaluation.statistics import (
    Interval,
    paired_difference,
    statistics,
    window_blocks,
    worst_tenth,
)

CLASSICAL = ("information_gain", "coverage", "random")
"""Classical planners, which neither learn nor see the ground truth; the best is the reference."""

METRICS = {"roi_entropy": -1, "f1": 1}
"""Main metrics, with their worst tenth: 1 if higher is better, −1 if lower is better."""
LABELS = {
    "roi_entropy": "ROI entropy [bit]",
    "f1": "F1",
    "rmse": "RMSE",
    "wrmse": "RMSE in ROI",
    "mll": "log loss [nat]",
    "wmll": "log loss in ROI [nat]",
    "ece": "calibration error",
    "brier": "Brier score",
    "coverage": "coverage",
    "completed_roi_entropy": "completed map: ROI entropy [bit]",
    "completed_f1": "completed map: F1",
    "completed_ece": "completed map: calibration error",
    "completed_brier": "completed map: Brier score",
    "learned_caution": "learned caution",
    "path_length": "path length [m]",
    "return": "return",
    "absolute_return": "absolute return",
}
_MINUS = " - "  # separator in the name of a difference between two policies
_WIDTH = 1000  # maximum width of a table [characters]


def results(
    records: Mapping[str, FlightRecord], settings: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all results of an evaluation in plain types.

    `policies.<name>.<metric>`: values, missions × rounds (round 0 = before any reading), missions ×
    altitudes (`altitude_shares`) or one number per mission. `summary.<name>.<metric>`: statistics
    after the last move. `differences`: paired differences to the `reference_policy`. For `METRICS`
    both have `worst_tenth` (see `statistics.worst_tenth`). `blocks`: see `mission_blocks`. `timing`
    and `machine` vary between runs.
    """
    finals = {name: final_values(record) for name, record in records.items()}
    blocks = mission_blocks(next(iter(records.values())))
    summary = {
        name: {key: statistics(values, blocks) for key, values in final.items()}
        for name, final in finals.items()
    }
    reference = reference_policy(summary)
    for (name, final), (key, sign) in product(finals.items(), METRICS.items()):
        summary[name][key]["worst_tenth"] = worst_tenth(final[key][None], sign, blocks)
    policies, differences, timing = {}, {}, {}
    for name, record in records.items():
        measured = record.metrics | {
            "path_length": record.path_length,
            "altitude_shares": record.altitude_shares,
            "return": record.episode_return,
            "absolute_return": record.absolute_return,
        }
        policies[name] = {metric: values.tolist() for metric, values in measured.items()}
        seconds, batch = record.planning_seconds, record.missions_per_batch
        timing[name] = {
            "planning_seconds_per_batch_step": seconds,
            "missions_per_batch": batch,
            "planning_seconds_per_step": fmean(seconds) / batch,
        }
        if name != reference:
            ours, theirs = finals[name], finals[reference]
            change = {key: paired_difference(ours[key], theirs[key], blocks) for key in ours}
            for key, sign in METRICS.items():
                rows = ours[key][None], sign, blocks, theirs[key][None]
                change[key]["worst_tenth"] = worst_tenth(*rows)
            differences[name + _MINUS + reference] = change
    return {
        "settings": dict(settings),
        "blocks": None if blocks is None else blocks.tolist(),
        "policies": policies,
        "summary": summary,
        "differences": differences,
        "timing": timing,
        "machine": dict(machine),
    }


def final_values(record: FlightRecord) -> dict[str, Tensor]:
    """Return all metrics after the last move, by name, [E] each."""
    shares = zip(record.config.geometry.altitudes, record.altitude_shares.unbind(-1), strict=True)
    return {
        **{name: values[:, -1] for name, values in record.metrics.items()},
        "path_length": record.path_length,
        "return": record.episode_return,
        "absolute_return": record.absolute_return,
        **{f"readings at {altitude:g} m": share for altitude, share in shares},
    }


def reference_policy(summary: Mapping[str, Any]) -> str:
    """Return the classical planner with the lowest mean ROI entropy, or else the first policy."""
    classical = [name for name in summary if name in CLASSICAL] or [*summary][:1]
    return min(classical, key=lambda name: summary[name]["roi_entropy"]["mean"])


def mission_blocks(record: FlightRecord) -> Tensor | None:
    """Return the missions' blocks (see `window_blocks`), [E]; None without a measured map."""
    if record.window_origins is None:
        return None
    area = record.config.environment
    return window_blocks(record.window_origins, (area.x_dim, area.y_dim))


def table_text(results: Mapping[str, Any]) -> str:
    """Return the tables of `results` after the last move, with a row per metric and policy.

    The last column is the mean paired difference to the `reference_policy`. The second table has
    the worst tenth of several missions.
    """
    summary, differences = results["summary"], results["differences"]
    first, reference = next(iter(summary)), reference_policy(summary)
    missions, blocks = len(results["policies"][first]["return"]), results["blocks"]
    number = len(set(blocks or ()))
    ground = f", {number} block{'s' * (number != 1)} of ground" if number else ""
    title = f"{missions} mission{'s' * (missions != 1)}{ground}, after the last move"
    columns = ["mean ± std", "interquartile mean [95 %]"]
    columns += [f"− {reference} [95 %]"] if differences else []
    table = new_table(title, ("", "policy"), columns)
    for key in summary[first]:
        for name, rows in summary.items():
            row = rows[key]
            digits = _digits(row["mean"])
            spread = "" if row["std"] is None else f" ± {row['std']:.{digits}f}"
            iqm = with_interval(row["iqm"], row["iqm_interval"])
            cells = [f"{row['mean']:.{digits}f}{spread}", iqm]
            if name != reference:
                change = differences[name + _MINUS + reference][key]
                cells.append(with_interval(change["mean"], change["interval"], sign="+"))
            label = LABELS.get(key, key) if name == first else ""
            table.add_row(*map(Text, (label, name, *cells)))  # Text: brackets are not markup
        table.add_section()
    for name, timing in results["timing"].items():
        label = "planning a move [ms]" if name == first else ""
        seconds = timing["planning_seconds_per_step"]
        table.add_row(*map(Text, (label, name, f"{1000 * seconds:.3f}")))
    text = as_text(table)
    return text if missions == 1 else text + _worst_tenth_text(results, reference)


def _worst_tenth_text(results: Mapping[str, Any], reference: str) -> str:
    """Return the table of the worst tenth of missions."""
    summary, differences = results["summary"], results["differences"]
    columns = ["mean [95 %]"] + ([f"− {reference} [95 %]"] if differences else [])
    table = new_table("Worst tenth of the missions, after the last move", ("", "policy"), columns)
    for key in METRICS:
        for number, (name, rows) in enumerate(summary.items()):
            worst = rows[key]["worst_tenth"]
            cells = [with_interval(worst["mean"], worst["interval"])]
            if name != reference:
                change = differences[name + _MINUS + reference][key]["worst_tenth"]
                cells.append(with_interval(change["mean"], change["interval"], sign="+"))
            table.add_row(*map(Text, ("" if number else LABELS[key], name, *cells)))
        table.add_section()
    return as_text(table)


def overview(worlds: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of mean ROI entropy and F1; each world has a `name` and `results`' keys."""
    table = new_table("ROI entropy [bit] / F1, means", ("",), list(worlds[0]["summary"]))
    for world in worlds:
        means = [
            f"{row['roi_entropy']['mean']:.4f} / {row['f1']['mean']:.4f}"
            for row in world["summary"].values()
        ]
        table.add_row(world["name"], *means)
    return table


def new_table(title: str, labels: Sequence[str], columns: Sequence[str]) -> Table:
    """Return an empty table: label columns, then columns of numbers (of words if unnamed)."""
    table = Table(box=SIMPLE_HEAD, title=Text(title))
    for header in labels:
        table.add_column(header, no_wrap=True)
    for header in columns:
        table.add_column(Text(header), justify="right" if header else "left", no_wrap=True)
    return table


def as_text(table: Table) -> str:
    """Return a table as plain text."""
    buffer = StringIO()
    Console(file=buffer, width=_WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def with_interval(
    mean: float, interval: Interval | None, sign: str = "", digits: int | None = None
) -> str:
    """Return a mean and its interval as text, by default with 4 decimals (1 for large means)."""
    form = f"{sign}.{_digits(mean) if digits is None else digits}f"
    ends = "" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]"
    return f"{mean:{form}}{ends}"


def _digits(mean: float) -> int:
    return 4 if abs(mean) < 10 else 1
