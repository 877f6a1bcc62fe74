"""What settings of the search bring: `python -m benchmarks.learning.search_settings`.

Flies `search` on validation missions of the params file (default: params_fast.yaml), with plans
that UAVs remember or not, with more or less presumed of those out of touch, and with more or less
weight on ground outside the region of interest. Several predictors count as training seeds.
Differences are to the first row with as many UAVs and as much radio.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, check_between, with_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import validate
from marl_framework.evaluation.report import with_interval
from marl_framework.evaluation.statistics import interval
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner

METRICS = ("roi_entropy", "f1")
TEAMS = (4, 8)
RANGES = (25.0, 0.0)
KEYS = ("plan_memory", "presumed_share", "outside_weight")
SETTINGS = (
    (0.0, 0.0, 0.0),
    (0.9, 0.0, 0.0),
    (0.9, 0.5, 0.0),
    (0.9, 0.7, 0.0),
    (0.9, 0.95, 0.0),
    (0.9, 0.7, 0.1),
    (0.9, 0.95, 0.2),
)
"""Values of `KEYS` in each row."""
_SEARCH = "experiment.baselines.search"


def measure(
    config: Config, device: torch.device, predictors: Sequence[str], missions: int
) -> dict[str, Any]:
    """Fly all settings with all predictors.

    Returns:
        `rows`: `agents`, `communication_range` [m], `KEYS`, and for each of `METRICS` the `mean`,
        its `interval`, and `difference` and `difference_interval` to the first row of both.
    """
    rows = []
    for agents, reach in product(TEAMS, RANGES):
        first: dict[str, Tensor] = {}
        for values_of_keys in SETTINGS:
            chosen = dict(zip(KEYS, values_of_keys, strict=True))
            changes = [
                f"experiment.missions.n_agents={agents}",
                f"experiment.uav.communication_range={reach}",
                *(f"{_SEARCH}.{key}={value}" for key, value in chosen.items()),
            ]
            flown = [
                _fly(config, device, [*changes, f"{_SEARCH}.predictor={name}"], missions)
                for name in predictors
            ]
            row: dict[str, Any] = {"agents": agents, "communication_range": reach, **chosen}
            for metric in METRICS:
                values = torch.stack([finals[metric] for finals in flown])
                change = values - first.setdefault(metric, values)
                row[metric] = {
                    "mean": float(values.mean()),
                    "interval": interval(values),
                    "difference": float(change.mean()),
                    "difference_interval": interval(change),
                }
            rows.append(row)
    return {
        "rows": rows,
        "settings": {
            "predictors": len(predictors),
            "missions": missions,
            "configuration": config_to_dict(config),
        },
        "machine": harness.announce_machine(device),
    }


def _fly(
    config: Config, device: torch.device, changes: Sequence[str], missions: int
) -> Mapping[str, Tensor]:
    chosen = with_overrides(config, *changes)
    env = MissionEnvironment(chosen, missions, device, "validation")
    return validate(env, make_planner("search", env))


def table(found: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = []
    for row in found["rows"]:
        cells = []
        for metric in METRICS:
            of = row[metric]
            cells.append(f"{of['mean']:.3f}")
            ends = of["difference_interval"]
            cells.append(with_interval(of["difference"], ends, "+", 3) if any(ends) else "")
        described = (row["agents"], row["communication_range"], *(row[key] for key in KEYS))
        lines.append((*(f"{value:g}" for value in described), *cells))
    settings = found["settings"]
    title = f"Search with {settings['predictors']} predictors, {settings['missions']} missions each"
    keys = (key.replace("_", " ") for key in KEYS)
    columns = ("UAVs", "range [m]", *keys, "ROI entropy", "change", "F1", "change")
    return harness.table_text(title, columns, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser("learning.search_settings", "Vary settings of the search.", "params_fast.yaml")
    parser.add_argument("--predictors", metavar="RUN,…", help="trained predictors")
    parser.add_argument("--missions", type=int, default=192, metavar="K", help="of a row (192)")
    return parser.publish(parser.parse_args(arguments), _measured, table)


def _measured(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    if not options.predictors:
        raise ConfigError("--predictors: name trained ones, such as runs/a,runs/b")
    check_between("--missions", options.missions, 2, 4096)
    return measure(config, device, options.predictors.split(","), options.missions)


if __name__ == "__main__":
    sys.exit(main())
