"""Compare a trained team with the published planners, in the simulator of the paper's authors.

    git clone https://github.com/dmar-bonn/ipp-marl
    python -m benchmarks.reference.published_simulator --src ipp-marl --checkpoint RUN,RUN,RUN

Several runs are training seeds of one team; each seed flies all missions. The unchanged published
code and its imports are required (scikit-learn and scipy in addition to our dependencies). It
simulates terrain, starts, noise, mapping, communication and metrics. Our observation is built from
its maps. Mission k is its trial k, and `--seed` is the first one. Policies, on the same missions:

| policy | |
|---|---|
| `learned`, `information_gain`, … | our planners |
| `published_information_gain` | as published |
| `published_information_gain+probability` | with the probability of a positive reading corrected |
| `published_information_gain+probability+shared` | also counts the next views of earlier UAVs |
| `published_random` | as published: it reads at the start and makes one move less |

The JSON has the metrics of every policy, mission and training seed after every round, with round 0
before any reading; facts about the world; and for each plane the largest difference between the
published observation and ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import answer, names_of, output_file, whole_number
from benchmarks.helpers.text import table_text
from benchmarks.reference.published_code import PublishedCode
from benchmarks.reference.published_flights import (
    PLANES,
    STARTS,
    TERRAINS,
    Bridge,
    CorrectedGain,
    Outcome,
    Pilot,
    World,
    flown_config,
    fly_published,
)
from marl_framework.command_line import Parser, add_checkpoint
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.parts import LEARNED, PLANNER_NAMES
from marl_framework.evaluation.report import with_interval
from marl_framework.evaluation.statistics import interval
from marl_framework.evaluation.suite import check_one_training
from marl_framework.planners.protocol import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint, find_checkpoint

SUITE = "published_simulator"
GAIN, RANDOM = "published_information_gain", "published_random"
CORRECTED, SHARED = f"{GAIN}+probability", f"{GAIN}+probability+shared"
POLICIES = (*PLANNER_NAMES, GAIN, CORRECTED, SHARED, RANDOM)
DEFAULT = (LEARNED, GAIN, RANDOM)
METRICS = {"roi_entropy": "ROI entropy [bit]", "f1": "F1"}

_MOST_MISSIONS = 10**5
_MOST_SEED = 10**6  # of the first mission; the published code multiplies it, below 2^32


class Flights:
    """The policies of a comparison.

    Args:
        world: the simulator.
        names: policies, from `POLICIES`.
        teams: training seeds of one team, for `learned`.

    Attributes:
        config: the mission as our configuration.
        differences: largest differences over all flights, see `Pilot`.
    """

    def __init__(self, world: World, names: Sequence[str], teams: Sequence[Checkpoint]) -> None:
        flown: list[Checkpoint | None] = [*teams] or [None]
        self.config = flown_config(world.code, flown[0])
        self.differences = dict.fromkeys(PLANES, 0.0)
        self._world, self._bridge = world, Bridge(self.config)
        environment = self._bridge.environment
        self._planners = {
            name: [
                make_planner(name, environment, team)
                for team in (flown if name == LEARNED else flown[:1])
            ]
            for name in names
            if name in PLANNER_NAMES
        }

    def fly(self, name: str, trial: int) -> list[Outcome]:
        """Fly one mission with each training seed."""
        if name == RANDOM:
            return [fly_published(self._world.flight(trial, "random_baseline"))]
        if name in self._planners:
            return [self._fly_ours(planner, trial) for planner in self._planners[name]]
        flight = self._world.flight(trial)
        if name in (CORRECTED, SHARED):
            CorrectedGain(flight, shared=name == SHARED)
        return [fly_published(flight)]

    def _fly_ours(self, planner: Planner, trial: int) -> Outcome:
        flight = self._world.flight(trial)
        generator = torch.Generator().manual_seed(trial)
        pilot = Pilot(flight, self._bridge, planner, generator)
        outcome = fly_published(flight)
        for plane, difference in pilot.differences.items():
            self.differences[plane] = max(self.differences[plane], difference)
        return outcome


def compare(flights: Flights, names: Sequence[str], trials: Sequence[int]) -> dict[str, Any]:
    """Fly all missions with each policy; return rows and statistics by name.

    Returns:
        For each policy `missions`, a list of `trial`, `team` (number of the training seed),
        `roi_entropy` and `f1` by round; and `summary`: by metric, `mean` and `std` (over missions,
        root mean square over seeds) after the last move, and the mean paired `difference` to the
        reference (see `reference_of`) with its 95 % bootstrap `interval` over seeds and missions.
    """
    results: dict[str, Any] = {name: {"missions": []} for name in names}
    for trial in trials:
        for name in names:
            for team, outcome in enumerate(flights.fly(name, trial)):
                row = {"trial": trial, "team": team, **vars(outcome)}
                results[name]["missions"].append(row)
        last = (f"{name} {results[name]['missions'][-1]['roi_entropy'][-1]:.3f}" for name in names)
        print(f"mission {trial}: {', '.join(last)}", file=sys.stderr, flush=True)
    reference = results[reference_of(names)]["missions"]
    for policy in results.values():
        policy["summary"] = {
            metric: _summary(_last(policy["missions"], metric), _last(reference, metric))
            for metric in METRICS
        }
    return results


def reference_of(names: Sequence[str]) -> str:
    """Return the policy that the others are compared with."""
    return GAIN if GAIN in names else names[0]


def _last(rows: Sequence[Mapping[str, Any]], metric: str) -> torch.Tensor:
    """Return the values after the last move, training seeds × missions."""
    teams = 1 + max(row["team"] for row in rows)
    return torch.tensor(
        [[row[metric][-1] for row in rows if row["team"] == k] for k in range(teams)],
        dtype=torch.float64,
    )


def _summary(values: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    difference = values - reference.mean(0)
    return {
        "mean": values.mean().item(),
        "std": values.var(1).mean().sqrt().item() if values.shape[1] > 1 else None,
        "difference": difference.mean().item(),
        "interval": interval(difference),
    }


def table(results: Mapping[str, Any]) -> str:
    """Return the comparison, the planes and the facts as text."""
    settings = results["settings"]
    reference = reference_of(settings["policies"])
    lines = []
    for name, policy in results["policies"].items():
        cells: list[str] = []
        for metric in METRICS:
            row = policy["summary"][metric]
            cells += (_spread(row), with_interval(row["difference"], row["interval"], "+", 3))
        lines.append((name, *cells))
    title = (
        f"{settings['missions']} missions, {settings['terrain']} terrain, {settings['starts']} "
        f"starts; differences are to {reference}"
    )
    header = ["policy"]
    for label in METRICS.values():
        header += [f"{label}, mean ± std", "difference [95 %]"]
    text = table_text(title, header, lines)
    if results["observation_differences"]:
        planes = [(k, f"{v:.1e}") for k, v in results["observation_differences"].items()]
        text += table_text(
            "Published observation and ours", ("plane", "largest difference"), planes
        )
    return text + _facts_text(results["world"])


def _spread(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f}" + (f" ± {row['std']:.3f}" if row["std"] is not None else "")


def _facts_text(facts: Mapping[str, Any]) -> str:
    starts = [str(tuple(start)) for start in facts["first_uav_starts"]]
    lines = [
        f"UAV 0 starts at {', '.join(starts[:3])}{' …' if len(starts) > 3 else ''} m",
        f"UAVs share a start cell in {facts['missions_with_shared_starts']} missions",
        f"never seen: the last {facts['last_rows_never_seen']} rows and "
        f"{facts['last_columns_never_seen']} columns of the map",
        f"F1 counts a cell as found above {0.5 if facts['undecided_counts_as_found'] else 0.501}",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns 0, or 2 for bad input."""
    parser = Parser(
        prog=f"python -m benchmarks.reference.{SUITE}",
        description="Fly a trained team in a clone of the published code.",
    )
    parser.add_argument("--src", type=Path, required=True, metavar="CLONE", help="of ipp-marl")
    add_checkpoint(parser)
    parser.add_argument(
        "--policies",
        type=names_of(POLICIES),
        default=",".join(DEFAULT),
        metavar="NAME,…",
        help=f"of {', '.join(POLICIES)}",
    )
    for option, default, most in (("--missions", 50, _MOST_MISSIONS), ("--seed", 1, _MOST_SEED)):
        number = whole_number(1, most)
        parser.add_argument(option, type=number, default=default, metavar="N", help=f"({default})")
    parser.add_argument("--terrain", choices=TERRAINS, default=TERRAINS[0], help="(split)")
    parser.add_argument("--starts", choices=STARTS, default=STARTS[0], help="(published)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where {SUITE}--<device>.json goes (default: benchmarks/results)",
    )
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Run the comparison; return the printed text."""
    names = options.policies
    if LEARNED in names and options.checkpoint is None:
        raise ConfigError("--checkpoint: required for learned; give a trained team")
    code = PublishedCode(options.src)
    runs = options.checkpoint.split(",") if options.checkpoint else []
    teams = [find_checkpoint(run.strip()) for run in runs]
    check_one_training(teams, "--checkpoint")
    world = World(code, options.terrain, options.starts)
    flights = Flights(world, names, teams)
    slug = f"{SUITE}--{harness.device_slug(harness.CPU)}.json"
    path = output_file(options.out / slug if options.out else None, SUITE, harness.CPU)
    trials = range(options.seed, options.seed + options.missions)
    results = {
        "settings": {
            **{name: getattr(options, name) for name in ("missions", "seed", "terrain", "starts")},
            "policies": names,
            "published_commit": code.commit,
            "training_steps": [team.payload.get("training_step") for team in teams],
            "configuration": config_to_dict(flights.config),
        },
        "machine": harness.announce_machine(harness.CPU),
        "world": world.facts(trials),
        "policies": compare(flights, names, trials),
        "observation_differences": flights.differences
        if any(n in PLANNER_NAMES for n in names)
        else {},
    }
    harness.write_json(path, SUITE, results)
    return f"{table(results)}{path}"


if __name__ == "__main__":
    sys.exit(main())
