"""Fly one team over areas of many sizes: `python -m benchmarks.learning.fields`.

In each world, `--checkpoint` and the planners fly the same missions of the params file (default:
params_fast.yaml). Budgets let each team observe about half of the positions of its area; `search`
plans 15 moves ahead. Differences are the team minus a planner, paired by mission, with 95 %
intervals over missions and, with several teams, over their training seeds. Each world is written
when it ends, and a world that the JSON already has is not repeated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.flights import fly
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import Cache
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation.report import METRICS, with_interval
from marl_framework.evaluation.suite import SEARCH, check_one_training
from marl_framework.evaluation.suite_results import best_classical, difference
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.planners.team import load_team

PLANNERS = (SEARCH, "information_gain", "coverage")
_SIZES = {
    (50, 50): (1, 4),
    (100, 50): (4, 8),
    (100, 100): (4, 16),
    (200, 100): (16, 32),
    (200, 200): (16, 32, 64),
    (400, 200): (64,),
}
_LAKES = {"lake_alamillo": (2, 141), "lake_ypacarai": (4, 227)}
"""UAVs, as many as boats in the trainings of MultiAgentInformativePath, and positions."""
_HOLED = (16, 647)
"""UAVs and positions of holed_field.geojson."""
_SETTINGS = ("experiment.baselines.search.horizon=15",)


def worlds() -> dict[str, list[str]]:
    """Return the overrides of each world."""
    found = {}
    for (x, y), teams in _SIZES.items():
        for uavs in teams:
            moves = round((x // 5 + 1) * (y // 5 + 1) / 2 / uavs)
            found[f"{x}x{y}_{uavs}_uavs"] = [
                f"environment.x_dim={x}",
                f"environment.y_dim={y}",
                f"experiment.missions.n_agents={uavs}",
                f"experiment.constraints.budget={moves - 1}",
            ]
    field = ["environment.field=random", "experiment.missions.start=random"]
    found["random_fields_4_uavs"] = [*found["100x100_4_uavs"], *field]
    uavs, positions = _HOLED
    found[f"holed_field_{uavs}_uavs"] = [
        "environment.field=benchmarks/learning/holed_field.geojson",
        f"experiment.missions.n_agents={uavs}",
        f"experiment.constraints.budget={round(positions / 2 / uavs) - 1}",
    ]
    for lake, (uavs, positions) in _LAKES.items():
        found[f"{lake}_{uavs}_uavs"] = [
            f"environment.field=data:{lake}",
            "sensor.simulation.kinds=[random_field]",
            f"experiment.missions.n_agents={uavs}",
            f"experiment.constraints.budget={round(positions / 2 / uavs) - 1}",
        ]
    return found


def measure(job: Job) -> dict[str, Any]:
    """Fly the worlds that the JSON lacks.

    Returns:
        `runs`: `variant` (world), `seed`, `seconds` of each policy for all its missions, and for
        each of `METRICS` the mean of each policy, `seeds` (mean of each team), and `difference`
        to each planner (see `suite_results.difference`).
    """
    options = job.options
    teams = [load_team(run.strip()) for run in options.checkpoint.split(",")]
    check_one_training(teams, "--checkpoint")
    flown = {"missions": options.missions, "seed": options.seed}
    variants = {
        world: {"keys": keys, "checkpoint": options.checkpoint, **flown}
        for world, keys in worlds().items()
    }
    cache = Cache(job, variants, **flown)
    for world in options.worlds:
        if cache.has(variant=world):
            continue
        config = with_overrides(job.config, *worlds()[world], *_SETTINGS)
        run: dict[str, Any] = {"variant": world, "seconds": {}}
        finals = {}
        for policy in (LEARNED, *PLANNERS):
            start = time.perf_counter()
            pilots = teams if policy == LEARNED else [None]
            records = [fly(job, config, policy, team) for team in pilots]
            run["seconds"][policy] = time.perf_counter() - start
            finals[policy] = {
                metric: torch.stack([record.metrics[metric][:, -1].double() for record in records])
                for metric in METRICS
            }
        for metric, sign in METRICS.items():
            values = {policy: finals[policy][metric] for policy in finals}
            run[metric] = {policy: float(value.mean()) for policy, value in values.items()}
            run[metric]["seeds"] = values[LEARNED].mean(1).tolist()
            run[metric]["difference"] = {
                planner: difference(values[LEARNED], values[planner], planner, sign, None)
                for planner in PLANNERS
            }
        cache.add(seed=options.seed, **run)
    return cache.results


def table(results: Mapping[str, Any]) -> str:
    """Return all worlds as text."""
    policies, lines = (LEARNED, *PLANNERS), []
    for run in results["runs"]:
        for metric, label in (("roi_entropy", "entropy"), ("f1", "F1")):
            found = run[metric]
            means = (f"{found[policy]:.3f}" for policy in policies)
            best = best_classical(found, METRICS[metric])
            differences = (found["difference"][planner] for planner in (SEARCH, best))
            texts = (with_interval(each["mean"], each["interval"], "+", 3) for each in differences)
            lines.append((run["variant"], label, *means, *texts))
    title = "{missions} missions per world, seed {seed}; differences: learned minus planner"
    header = ("", "", *policies, "- search", "- best classical")
    return table_text(title.format_map(results["settings"]), header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.fields", "Fly one team over many areas.", "params_fast.yaml")
    text = "trained teams, other seeds of one training (default: %(default)s)"
    parser.add_argument("--checkpoint", default="pretrained:student", metavar="RUNS", help=text)
    parser.add_names("--worlds", list(worlds()))
    parser.add_number("--missions", 50, "missions per world", 2, 4096)
    parser.add_number("--seed", 101, "evaluation seed", 0, MAX_SEED - 1)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
