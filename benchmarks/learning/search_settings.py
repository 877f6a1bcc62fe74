"""Vary settings of the search: `python -m benchmarks.learning.search_settings`.

Flies `search` on validation missions of the params file (default: params_fast.yaml). The settings
say whether UAVs remember plans, how much of its sector an unheard UAV is assumed to map, and the
weight of ground outside the region of interest. Several predictors count as training seeds.
Differences are to the first row with the same team size and radio range.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.text import table_text
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import validate
from marl_framework.evaluation.report import with_interval
from marl_framework.evaluation.statistics import interval
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.prediction import load_predictor
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


def measure(job: Job) -> dict[str, Any]:
    """Fly all settings with all predictors.

    Returns:
        `rows`: `agents`, `communication_range` [m], `KEYS`, and for each of `METRICS` the `mean`,
        its `interval`, and `difference` and `difference_interval` to the first row.

    Raises:
        ConfigError: no predictor is named, or one cannot be read.
    """
    if not job.options.predictors:
        raise ConfigError("--predictors: name trained ones, such as runs/a,runs/b")
    predictors, missions = job.options.predictors.split(","), job.options.missions
    for name in predictors:
        load_predictor(name, "--predictors")  # before any flight
    rows = []
    for agents, reach in product(TEAMS, RANGES):
        first: dict[str, Tensor] = {}
        for values_of_keys in SETTINGS:
            chosen = dict(zip(KEYS, values_of_keys, strict=True))
            config = with_overrides(
                job.config,
                f"experiment.missions.n_agents={agents}",
                f"experiment.uav.communication_range={reach}",
                *(f"{_SEARCH}.{key}={value}" for key, value in chosen.items()),
            )
            flown = [_fly(config, job.device, name, missions) for name in predictors]
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
    settings = {"predictors": len(predictors), "missions": missions}
    return {"rows": rows, "settings": settings}


def _fly(
    config: Config, device: torch.device, predictor: str, missions: int
) -> Mapping[str, Tensor]:
    chosen = with_overrides(config, f"{_SEARCH}.predictor={predictor}")
    env = MissionEnvironment(chosen, missions, device, "validation")
    return validate(env, make_planner("search", env))


def table(results: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = []
    for row in results["rows"]:
        cells = []
        for metric in METRICS:
            of = row[metric]
            cells.append(f"{of['mean']:.3f}")
            ends = of["difference_interval"]
            cells.append(with_interval(of["difference"], ends, "+", 3) if any(ends) else "")
        described = (row["agents"], row["communication_range"], *(row[key] for key in KEYS))
        lines.append((*(f"{value:g}" for value in described), *cells))
    settings = results["settings"]
    title = f"Search with {settings['predictors']} predictors, {settings['missions']} missions each"
    keys = (key.replace("_", " ") for key in KEYS)
    columns = ("UAVs", "range [m]", *keys, "ROI entropy", "change", "F1", "change")
    return table_text(title, columns, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.search_settings", "Vary settings of the search.", "params_fast.yaml")
    parser.add_argument("--predictors", metavar="RUN,…", help="trained predictors")
    parser.add_number("--missions", 192, "missions per row", 2, 4096)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
