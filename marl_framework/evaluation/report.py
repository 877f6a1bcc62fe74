"""Numbers of an evaluation: statistics over missions, a table, a JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from marl_framework.evaluation.flight import FlightRecord

CLASSICAL = ("information_gain", "coverage", "random")
"""Planners that neither learn nor see the truth; others are set against the best of them."""

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
_RESAMPLES = 4000
_TRIMMED = 0.25  # of the missions at either end, for the interquartile mean
_WIDTH = 200  # of a table; as wide as it needs to be

Interval = tuple[float, float]


@dataclass(frozen=True)
class Statistics:
    """Of a sample of missions; a single mission has no spread."""

    mean: float
    std: float | None
    """Sample standard deviation (divisor n - 1)."""
    standard_error: float | None
    """Of the mean: std / sqrt(n)."""
    iqm: float
    """Interquartile mean: without the lowest and the highest quarter of the missions."""
    iqm_interval: Interval | None
    """95 % bootstrap interval of the interquartile mean (Agarwal et al. 2021)."""


@dataclass(frozen=True)
class Difference:
    """Of two policies, mission by mission; a single mission has no spread."""

    mean: float
    std: float | None
    standard_error: float | None
    interval: Interval | None
    """95 % bootstrap interval of the mean."""


def statistics(values: Tensor) -> Statistics:
    """Return the statistics of `values` [E]."""
    sample = values.detach().double().cpu()
    return Statistics(
        *_moments(sample),
        iqm=_trimmed_mean(sample.unsqueeze(0)).item(),
        iqm_interval=_interval(_trimmed_mean(_resampled(sample))) if len(sample) > 1 else None,
    )


def paired_difference(ours: Tensor, theirs: Tensor) -> Difference:
    """Return the statistics of ours - theirs, mission by mission; both are [E]."""
    if ours.shape != theirs.shape:
        raise ValueError(f"{len(ours)} and {len(theirs)} missions make no pairs")
    sample = (ours.detach().double() - theirs.detach().double()).cpu()
    interval = _interval(_resampled(sample).mean(1)) if len(sample) > 1 else None
    return Difference(*_moments(sample), interval=interval)


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


def yardstick(records: Mapping[str, FlightRecord]) -> str:
    """Return the policy others are set against: the classical one of the lowest ROI entropy.

    Without a classical planner it is the first policy.
    """
    entropies = {
        name: record.metrics["roi_entropy"][:, -1].mean().item()
        for name, record in records.items()
        if name in CLASSICAL
    }
    return min(entropies, key=entropies.__getitem__) if entropies else next(iter(records))


def planning_seconds(record: FlightRecord) -> float:
    """Return the time a planner took for one move of one mission, over whole batches [s]."""
    mean = sum(record.planning_seconds) / len(record.planning_seconds)
    return mean / record.missions_at_once


def table(records: Mapping[str, FlightRecord]) -> Table:
    """Return the comparison after the last move: for every figure a row for each policy.

    The last column is the mean paired difference to the best classical planner.
    """
    finals = {name: final_values(record) for name, record in records.items()}
    other = yardstick(records)
    missions = len(records[other].reward_sum)
    counted = f"{missions} mission{'s' if missions != 1 else ''}"
    result = Table(box=SIMPLE_HEAD, title=f"{counted}, after the last move")
    for header in ("", "policy"):
        result.add_column(header, no_wrap=True)
    columns = ["mean ± std", "interquartile mean [95 %]"]
    if len(records) > 1:
        columns.append(f"− {other} [95 %]")
    for column in columns:
        result.add_column(Text(column), justify="right", no_wrap=True)
    for key in finals[other]:
        for name, final in finals.items():
            found = statistics(final[key])
            cells = [_plus_minus(found.mean, found.std), _ranged(found.iqm, found.iqm_interval)]
            if name != other:
                difference = paired_difference(final[key], finals[other][key])
                cells.append(_ranged(difference.mean, difference.interval, sign="+"))
            first = name == next(iter(finals))
            label = _LABELS.get(key, key) if first else ""
            result.add_row(*map(Text, (label, name, *cells)))  # Text: brackets are no markup
        result.add_section()
    for name, record in records.items():
        label = "planning a move [ms]" if name == next(iter(records)) else ""
        result.add_row(*map(Text, (label, name, f"{1000 * planning_seconds(record):.3f}")))
    return result


def table_text(records: Mapping[str, FlightRecord]) -> str:
    """Return the table as plain text, as wide as it needs to be."""
    return as_text(table(records))


def as_text(drawn: Table) -> str:
    """Return a table as plain text."""
    buffer = StringIO()
    Console(file=buffer, width=_WIDTH, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def results(
    records: Mapping[str, FlightRecord], settings: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything an evaluation found, in plain types.

    `policies.<name>.<metric>` holds missions × rounds (round 0 = before any reading), or one
    number a mission; `summary.<name>.<metric>` the statistics after the last move;
    `differences` those of each policy minus the best classical one, in pairs; `timing` and
    `machine` what differs from run to run.
    """
    finals = {name: final_values(record) for name, record in records.items()}
    other = yardstick(records)
    return {
        "settings": dict(settings),
        "policies": {name: _policy(record) for name, record in records.items()},
        "summary": {
            name: {key: vars(statistics(values)) for key, values in final.items()}
            for name, final in finals.items()
        },
        "differences": {
            f"{name} - {other}": {
                key: vars(paired_difference(values, finals[other][key]))
                for key, values in final.items()
            }
            for name, final in finals.items()
            if name != other
        },
        "timing": {
            name: {
                "planning_seconds_per_batch_step": record.planning_seconds,
                "missions_per_batch": record.missions_at_once,
                "planning_seconds_per_step": planning_seconds(record),
            }
            for name, record in records.items()
        },
        "machine": dict(machine),
    }


def write_results(found: Mapping[str, Any], path: Path) -> None:
    """Write results as strict JSON: NaN becomes null, an infinite number the string "inf"."""
    text = json.dumps(_strict(found), indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _moments(sample: Tensor) -> tuple[float, float | None, float | None]:
    """Return mean, standard deviation and standard error."""
    if len(sample) < 2:
        return sample.mean().item(), None, None
    std = sample.std().item()
    return sample.mean().item(), std, std / math.sqrt(len(sample))


def _trimmed_mean(samples: Tensor) -> Tensor:
    """Return the interquartile mean of each row of [B, n]."""
    n = samples.shape[1]
    cut = int(_TRIMMED * n)
    return samples.sort(dim=1).values[:, cut : n - cut].mean(1)


def _resampled(sample: Tensor) -> Tensor:
    """Draw missions with replacement, the same ones for every figure: [B, n]."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(len(sample), (_RESAMPLES, len(sample)), generator=generator)
    return sample[index]


def _interval(estimates: Tensor) -> Interval:
    """Return the middle 95 % of bootstrap estimates [B]."""
    low, high = estimates.quantile(torch.tensor([0.025, 0.975], dtype=estimates.dtype)).tolist()
    return low, high


def _policy(record: FlightRecord) -> dict[str, Any]:
    return {
        **{name: values.tolist() for name, values in record.metrics.items()},
        "path_length": record.path_length.tolist(),
        "altitude_shares": record.altitude_shares.tolist(),
        "return": record.reward_sum.tolist(),
        "absolute_return": record.absolute_return.tolist(),
    }


def _digits(mean: float) -> int:
    return 4 if abs(mean) < 10 else 1


def _plus_minus(mean: float, spread: float | None) -> str:
    digits = _digits(mean)
    number = f"{mean:.{digits}f}"
    return number if spread is None else f"{number} ± {spread:.{digits}f}"


def _ranged(mean: float, interval: Interval | None, sign: str = "") -> str:
    digits = _digits(mean)
    number = f"{mean:{sign}.{digits}f}"
    if interval is None:
        return number
    return f"{number} [{interval[0]:{sign}.{digits}f}, {interval[1]:{sign}.{digits}f}]"


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
