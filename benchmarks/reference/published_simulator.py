"""A trained team in the simulator of the paper's authors, beside their own planners.

    git clone https://github.com/dmar-bonn/ipp-marl
    python -m benchmarks.reference.published_simulator --src ipp-marl --checkpoint RUN,RUN,RUN

Several runs are training seeds of one team, each of which flies all missions.
Needed are the published code, which stays as it is, and what it imports (scikit-learn and scipy
beside our own dependencies). Everything a mission consists of is theirs: terrain, starts, noise,
mapping, communication, metrics. Our observation is built from their maps. Mission k is their trial
k, and `--seed` the first one. Policies, all on the same missions:

| policy | flies |
|---|---|
| `learned`, `information_gain`, … | our planners |
| `published_information_gain` | as published |
| `published_information_gain+probability` | with the probability of a positive reading corrected |
| `published_information_gain+probability+shared` | counts too what earlier UAVs are about to see |
| `published_random` | as published: it reads at the start and makes one move less |

The JSON has for each policy the metrics of every mission of every training seed after every round,
round 0 before any reading; facts on the world; and by plane the largest difference between their
observation and ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import answer, check_between, output_file, parse_names
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
_MOST_SEED = 10**6  # of the first mission; theirs multiply it and must stay below 2^32


class Flights:
    """The policies of a comparison, ready to fly.

    Args:
        world: where they fly.
        names: of `POLICIES`.
        teams: training seeds of one team, for `learned`.

    Attributes:
        config: the mission as ours.
        differences: see `Pilot`, largest over all flights.
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
        """Fly one mission, with each training seed of a team."""
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
    """Fly all missions with each policy; return their rows and statistics, by name.

    Returns:
        For each policy `missions`, a list of `trial`, `team` (number of the training seed),
        `roi_entropy` and `f1` by round; and `summary`: by metric, `mean` and `std` (over missions,
        root mean square over seeds) after the last move, and the mean paired `difference` to the
        reference (see `reference_of`) with its 95 % bootstrap `interval` over seeds and missions.
    """
    found: dict[str, Any] = {name: {"missions": []} for name in names}
    for trial in trials:
        for name in names:
            for team, outcome in enumerate(flights.fly(name, trial)):
                row = {"trial": trial, "team": team, **vars(outcome)}
                found[name]["missions"].append(row)
        last = (f"{name} {found[name]['missions'][-1]['roi_entropy'][-1]:.3f}" for name in names)
        print(f"mission {trial}: {', '.join(last)}", file=sys.stderr, flush=True)
    reference = found[reference_of(names)]["missions"]
    for policy in found.values():
        policy["summary"] = {
            metric: _summary(_last(policy["missions"], metric), _last(reference, metric))
            for metric in METRICS
        }
    return found


def reference_of(names: Sequence[str]) -> str:
    """Return what the others are compared with: the published planner, else the first one."""
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


# Tables -----------------------------------------------------------------------------------


def table(found: Mapping[str, Any]) -> str:
    """Return the comparison, the planes and the facts as text."""
    settings = found["settings"]
    reference = reference_of(settings["policies"])
    lines = []
    for name, policy in found["policies"].items():
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
    text = harness.table_text(title, header, lines)
    if found["observation_differences"]:
        planes = [(k, f"{v:.1e}") for k, v in found["observation_differences"].items()]
        text += harness.table_text(
            "Its observation and ours of its maps", ("plane", "largest difference"), planes
        )
    return text + _facts_text(found["world"])


def _spread(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f}" + (f" ± {row['std']:.3f}" if row["std"] is not None else "")


def _facts_text(facts: Mapping[str, Any]) -> str:
    starts = [str(tuple(start)) for start in facts["first_uav_starts"]]
    lines = [
        f"UAV 0 starts at {', '.join(starts[:3])}{' …' if len(starts) > 3 else ''} m",
        f"UAVs share a start cell in {facts['missions_with_shared_starts']} missions",
        f"never seen: the last {facts['last_rows_never_seen']} rows and "
        f"{facts['last_columns_never_seen']} columns of the map",
        f"F1 takes a cell as found above {0.5 if facts['undecided_counts_as_found'] else 0.501}",
    ]
    return "\n".join(lines) + "\n"


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns 0, or 2 for bad input."""
    parser = Parser(
        prog=f"python -m benchmarks.reference.{SUITE}",
        description="Fly a trained team in a clone of the published code.",
    )
    parser.add_argument("--src", type=Path, required=True, metavar="CLONE", help="of ipp-marl")
    add_checkpoint(parser)
    parser.add_argument(
        "--policies", default=",".join(DEFAULT), metavar="NAME,…", help=f"of {', '.join(POLICIES)}"
    )
    parser.add_argument("--missions", type=int, default=50, metavar="M", help="(50)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="first trial (1)")
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
    """Do what a command line asks for; return what it prints."""
    names = list(dict.fromkeys(parse_names("--policies", options.policies, POLICIES)))
    check_between("--missions", options.missions, 1, _MOST_MISSIONS)
    check_between("--seed", options.seed, 1, _MOST_SEED)
    if LEARNED in names and options.checkpoint is None:
        raise ConfigError("--checkpoint: give a trained team, or leave learned out of --policies")
    code = PublishedCode(options.src)
    runs = options.checkpoint.split(",") if options.checkpoint else []
    teams = [find_checkpoint(run.strip()) for run in runs]
    check_one_training(teams, "--checkpoint")
    world = World(code, options.terrain, options.starts)
    flights = Flights(world, names, teams)
    slug = f"{SUITE}--{harness.device_slug(harness.CPU)}.json"
    path = output_file(options.out / slug if options.out else None, SUITE, harness.CPU)
    trials = range(options.seed, options.seed + options.missions)
    found = {
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
    harness.write_json(path, SUITE, found)
    return f"{table(found)}{path}"


if __name__ == "__main__":
    sys.exit(main())
