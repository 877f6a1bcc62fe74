"""Report of an evaluation: a table, and the content of a JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
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
)

CLASSICAL = ("information_gain", "coverage", "random")
"""Planners that neither learn nor see the ground truth; the best of them is the reference."""

_LABELS = {
    "roi_entropy": "ROI entropy [bit]",
    "f1": "F1",
    "rmse": "RMSE",
    "wrmse": "RMSE in ROI",
    "mll": "log loss [nat]",
    "wmll": "log loss in ROI [nat]",
    "coverage": "coverage",
    "path_length": "path length [m]",
    "return": "return",
    "absolute_return": "absolute return",
}
_MINUS = " - "  # between two policies in the name of their difference
_WIDTH = 1000  # characters; no table is wider


def results(
    records: Mapping[str, FlightRecord], settings: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all results of an evaluation in plain types.

    `policies.<name>.<metric>` holds missions × rounds (round 0 = before any reading), missions ×
    altitudes (`altitude_shares`) or one number per mission; `summary.<name>.<metric>` the
    statistics after the last move; `differences` the paired differences to the `reference_policy`;
    `blocks` the number of each mission's ground (see `mission_blocks`). `timing` and `machine`
    vary between runs.
    """
    finals = {name: final_values(record) for name, record in records.items()}
    blocks = mission_blocks(next(iter(records.values())))
    summary = {
        name: {key: statistics(values, blocks) for key, values in final.items()}
        for name, final in finals.items()
    }
    reference = reference_policy(summary)
    policies, differences, timing = {}, {}, {}
    for name, record in records.items():
        measured = record.metrics | {
            "path_length": record.path_length,
            "altitude_shares": record.altitude_shares,
            "return": record.episode_return,
            "absolute_return": record.absolute_return,
        }
        policies[name] = {metric: values.tolist() for metric, values in measured.items()}
        seconds, at_once = record.planning_seconds, record.missions_per_batch
        timing[name] = {
            "planning_seconds_per_batch_step": seconds,
            "missions_per_batch": at_once,
            "planning_seconds_per_step": fmean(seconds) / at_once,
        }
        if name != reference:
            differences[name + _MINUS + reference] = {
                key: paired_difference(values, finals[reference][key], blocks)
                for key, values in finals[name].items()
            }
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
    """Return all metrics after the last move by name, [E] each."""
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
    """Return the `statistics.window_blocks` of missions, [E]; None without a measured map."""
    if record.window_origins is None:
        return None
    area = record.config.environment
    return window_blocks(record.window_origins, (area.x_dim, area.y_dim))


def table_text(found: Mapping[str, Any]) -> str:
    """Return a table of `results` after the last move, with a row per metric and policy.

    The last column is the mean paired difference to the `reference_policy`.
    """
    summary, differences = found["summary"], found["differences"]
    first, reference = next(iter(summary)), reference_policy(summary)
    missions, blocks = len(found["policies"][first]["return"]), found["blocks"]
    ground = "" if blocks is None else f", {len(set(blocks))} blocks of ground"
    title = f"{missions} mission{'s' * (missions != 1)}{ground}, after the last move"
    columns = ["mean ± std", "interquartile mean [95 %]"]
    columns += [f"− {reference} [95 %]"] if differences else []
    drawn = new_table(title, ("", "policy"), columns)
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
            label = _LABELS.get(key, key) if name == first else ""
            drawn.add_row(*map(Text, (label, name, *cells)))  # Text: no markup in brackets
        drawn.add_section()
    for name, spent in found["timing"].items():
        label = "planning a move [ms]" if name == first else ""
        seconds = spent["planning_seconds_per_step"]
        drawn.add_row(*map(Text, (label, name, f"{1000 * seconds:.3f}")))
    return as_text(drawn)


def overview(worlds: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of mean ROI entropy and F1; `worlds` hold a `name` and their `results`."""
    drawn = new_table("ROI entropy [bit] / F1, means", ("",), list(worlds[0]["summary"]))
    for found in worlds:
        means = [
            f"{row['roi_entropy']['mean']:.4f} / {row['f1']['mean']:.4f}"
            for row in found["summary"].values()
        ]
        drawn.add_row(found["name"], *means)
    return drawn


def new_table(title: str, labels: Sequence[str], columns: Sequence[str]) -> Table:
    """Return a table without rows, with columns of labels and of numbers (or words, unnamed)."""
    drawn = Table(box=SIMPLE_HEAD, title=Text(title))
    for header in labels:
        drawn.add_column(header, no_wrap=True)
    for header in columns:
        drawn.add_column(Text(header), justify="right" if header else "left", no_wrap=True)
    return drawn


def as_text(drawn: Table) -> str:
    """Return a table as plain text."""
    buffer = StringIO()
    Console(file=buffer, width=_WIDTH, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def with_interval(
    mean: float, interval: Interval | None, sign: str = "", digits: int | None = None
) -> str:
    """Return a mean and its interval as text; four digits, fewer for large numbers."""
    form = f"{sign}.{_digits(mean) if digits is None else digits}f"
    ends = "" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]"
    return f"{mean:{form}}{ends}"


def _digits(mean: float) -> int:
    return 4 if abs(mean) < 10 else 1
