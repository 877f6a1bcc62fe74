"""Numbers of an evaluation: statistics over missions, a table, a JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from marl_framework.evaluation.flight import FlightRecord

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


@dataclass(frozen=True)
class Statistics:
    """Of a sample of missions; a single mission has neither deviation nor standard error."""

    mean: float
    std: float | None
    """Sample standard deviation (divisor n - 1)."""
    standard_error: float | None
    """Of the mean: std / sqrt(n)."""


def statistics(values: Tensor) -> Statistics:
    """Return mean, deviation and standard error of `values` [E]."""
    sample = values.detach().double().cpu()
    if len(sample) < 2:
        return Statistics(sample.mean().item(), None, None)
    std = sample.std().item()
    return Statistics(sample.mean().item(), std, std / math.sqrt(len(sample)))


def paired_difference(ours: Tensor, theirs: Tensor) -> Statistics:
    """Return the statistics of ours - theirs, mission by mission; both are [E]."""
    if ours.shape != theirs.shape:
        raise ValueError(f"{len(ours)} and {len(theirs)} missions make no pairs")
    return statistics(ours.double() - theirs.double())


def final_values(record: FlightRecord) -> dict[str, Tensor]:
    """Return every figure of the missions after the last move, by name: [E] each."""
    shares = zip(record.config.altitudes, record.altitude_shares.unbind(-1), strict=True)
    return {
        **{name: values[:, -1] for name, values in record.metrics.items()},
        "path_length": record.path_length,
        "return": record.reward_sum,
        "absolute_return": record.absolute_return,
        **{f"readings at {altitude:g} m": share for altitude, share in shares},
    }


def table(records: Mapping[str, FlightRecord]) -> Table:
    """Return the comparison after the last move: mean ± std of each policy.

    With several policies, one column for each but the first holds the mean paired difference
    of the first policy to it, ± its standard error.
    """
    finals = {name: final_values(record) for name, record in records.items()}
    first, *others = finals
    missions = len(next(iter(records.values())).reward_sum)
    counted = f"{missions} mission{'s' if missions != 1 else ''}"
    result = Table(box=SIMPLE_HEAD, title=f"{counted}, after the last move")
    result.add_column("")
    for name in finals:
        result.add_column(f"{name}\nmean ± std", justify="right")
    for name in others:
        result.add_column(f"{first} − {name}\nmean ± standard error", justify="right")
    for key in finals[first]:
        cells = [_plus_minus(s.mean, s.std) for s in (statistics(f[key]) for f in finals.values())]
        for name in others:
            difference = paired_difference(finals[first][key], finals[name][key])
            cells.append(_plus_minus(difference.mean, difference.standard_error, sign="+"))
        result.add_row(Text(_LABELS.get(key, key)), *cells)  # Text: brackets are no markup
    return result


def table_text(records: Mapping[str, FlightRecord]) -> str:
    """Return the table as plain text, as wide as it needs to be."""
    buffer = StringIO()
    Console(file=buffer, width=60 + 60 * len(records), color_system=None).print(table(records))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def results(
    records: Mapping[str, FlightRecord], settings: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything an evaluation found, in plain types.

    `policies.<name>.<metric>` holds missions × rounds (round 0 = before any reading), or one
    number a mission; `summary.<name>.<metric>` the statistics after the last move;
    `differences` those of the first policy minus each other one, in pairs; `timing` and
    `machine` what differs from run to run.
    """
    finals = {name: final_values(record) for name, record in records.items()}
    first, *others = finals
    return {
        "settings": dict(settings),
        "policies": {name: _policy(record) for name, record in records.items()},
        "summary": {
            name: {key: vars(statistics(values)) for key, values in final.items()}
            for name, final in finals.items()
        },
        "differences": {
            f"{first} - {name}": {
                key: vars(paired_difference(values, finals[name][key]))
                for key, values in finals[first].items()
            }
            for name in others
        },
        "timing": {
            name: {"planning_seconds_per_batch_step": record.planning_seconds}
            for name, record in records.items()
        },
        "machine": dict(machine),
    }


def write_results(found: Mapping[str, Any], path: Path) -> None:
    """Write results as strict JSON: NaN becomes null, an infinite number the string "inf"."""
    text = json.dumps(_strict(found), indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _policy(record: FlightRecord) -> dict[str, Any]:
    return {
        **{name: values.tolist() for name, values in record.metrics.items()},
        "path_length": record.path_length.tolist(),
        "altitude_shares": record.altitude_shares.tolist(),
        "return": record.reward_sum.tolist(),
        "absolute_return": record.absolute_return.tolist(),
    }


def _plus_minus(mean: float, spread: float | None, sign: str = "") -> str:
    digits = 4 if abs(mean) < 10 else 1
    number = f"{mean:{sign}.{digits}f}"
    return number if spread is None else f"{number} ± {spread:.{digits}f}"


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
