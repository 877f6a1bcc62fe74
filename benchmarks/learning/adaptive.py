"""Compare adaptive flights with replayed plans: `python -m benchmarks.learning.adaptive`.

Three ways to fly the missions of the params file (default: params.yaml), on each terrain:

- adaptive: the team decides from what it reads in this mission.
- replayed: the team repeats the moves that it made on another map of the same terrain, with the
  same starts, as exported mission files do.
- coverage: lawnmower pattern.

All ways fly the same missions with the same sensor noise. Differences are adaptive minus the other
way, paired by mission, with 95 % intervals.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers import figures
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.text import table_text
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation.comparison import batch_size
from marl_framework.evaluation.flight import FlightRecord, MissionStreams, evaluate
from marl_framework.evaluation.report import METRICS, with_interval
from marl_framework.evaluation.statistics import paired_difference
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.mission.state import MissionState, ResetDraws
from marl_framework.planners.protocol import Decision, Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint, load_team, with_team

TERRAINS = ("split", "random_field", "landscape")
TEAMS = ("student", "search")
WAYS = ("adaptive", "replayed", "coverage")


class OtherMaps(MissionStreams):
    """Draws of the next evaluation seed, with the starts of this one."""

    def __init__(
        self, env: MissionEnvironment, seed: int, split: str = "test", first: int = 0
    ) -> None:
        super().__init__(env, (seed + 1) % MAX_SEED, split, first)
        self._flown = MissionStreams(env, seed, split, first)

    def draw_reset(self) -> ResetDraws:
        """Draw the random numbers for the start of E missions."""
        return replace(super().draw_reset(), start=self._flown.draw_reset().start)


class Recording:
    """A planner whose actions are kept in `actions`, [E, N] each."""

    def __init__(self, planner: Planner) -> None:
        self.name, self._planner = planner.name, planner
        self.actions: list[Tensor] = []

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        decision = self._planner.act(state, generator)
        self.actions.append(decision.actions.clone())
        return decision


class Replaying:
    """Repeats recorded actions from the same starts, whatever the UAVs read."""

    name = "replayed"

    def __init__(self, actions: Sequence[Tensor], lattice: Lattice) -> None:
        self._actions, self._lattice = iter(actions), lattice

    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Return the next recorded actions; see `Planner`."""
        actions = next(self._actions)
        chosen = self._lattice.choose_in_missions(state, lambda uav, mask: actions[:, uav])
        return Decision(*chosen)


def measure(job: Job) -> dict[str, Any]:
    """Fly all ways on all terrains.

    Returns:
        `rows`: `terrain`, `team`, and for each of `METRICS` the mean of each way, and `difference`
        to the other ways (see `statistics.paired_difference`).
    """
    options, rows = job.options, []
    student = load_team(options.checkpoint)
    for terrain, team in product(options.terrains, options.teams):
        config = with_overrides(job.config, f"sensor.simulation.kinds=[{terrain}]")
        if team == "student":
            config = with_team(config, student)
        batch = batch_size(config, options.missions)
        env = MissionEnvironment(config, batch, job.device, "test")
        flown = fly(env, team, student, options.missions, options.seed)
        row: dict[str, Any] = {"terrain": terrain, "team": team}
        for metric in METRICS:
            finals = {way: record.metrics[metric][:, -1] for way, record in flown.items()}
            row[metric] = {way: float(values.mean()) for way, values in finals.items()}
            row[metric]["difference"] = {
                way: paired_difference(finals["adaptive"], finals[way]) for way in WAYS[1:]
            }
        rows.append(row)
    return {"rows": rows, "settings": {"missions": options.missions, "seed": options.seed}}


def fly(
    env: MissionEnvironment, team: str, student: Checkpoint | None, missions: int, seed: int
) -> dict[str, FlightRecord]:
    """Fly a team in all `WAYS`."""
    name = LEARNED if team == "student" else team
    fly_all = partial(evaluate, env, missions=missions, seed=seed, curves=False)
    planner = Recording(make_planner(name, env, student))
    adaptive = fly_all(planner)
    planner.actions.clear()
    fly_all(planner, streams=OtherMaps)
    replayed = fly_all(Replaying(planner.actions, env.lattice))
    coverage = fly_all(make_planner("coverage", env))
    return dict(zip(WAYS, (adaptive, replayed, coverage), strict=True))


def table(results: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = []
    for row, (metric, label) in product(
        results["rows"], (("roi_entropy", "entropy"), ("f1", "F1"))
    ):
        values = row[metric]
        differences = (values["difference"][way] for way in WAYS[1:])
        texts = (with_interval(each["mean"], each["interval"], "+", 3) for each in differences)
        means = (f"{values[way]:.3f}" for way in WAYS)
        lines.append((f"{row['terrain']}, {row['team']}", label, *means, *texts))
    settings = results["settings"]
    title = f"{settings['missions']} missions per row, seed {settings['seed']}; 95 % intervals"
    return table_text(title, ("mission", "", *WAYS, *(f"− {way}" for way in WAYS[1:])), lines)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the differences to the other ways with their intervals."""
    figure = figures.make_figure(8, 0.5 * len(results["rows"]) + 1.5)
    names = [f"{row['terrain']}, {row['team']}" for row in results["rows"]]
    for axes, (metric, label) in zip(
        figure.subplots(1, 2, sharey=True),
        (("roi_entropy", "ROI entropy [bit]"), ("f1", "F1")),
        strict=True,
    ):
        for way, colour, shift in zip(
            WAYS[1:], (figures.BLUE, figures.ORANGE), (-0.1, 0.1), strict=True
        ):
            for place, row in enumerate(results["rows"]):
                change = row[metric]["difference"][way]
                low, high = change["interval"]
                axes.plot([low, high], [place + shift] * 2, color=colour)
                axes.plot(
                    change["mean"],
                    place + shift,
                    "o",
                    color=colour,
                    label=f"− {way}" if not place else None,
                )
        axes.axvline(0, color="grey", lw=1)
        axes.set_xlabel(f"adaptive minus other way, {label}")
        axes.set_yticks(range(len(names)), names)
        figures.tidy(axes)
    axes.legend()
    figures.save(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.adaptive", "Compare adaptive flights with replayed plans.")
    parser.add_flights()
    parser.add_names("--terrains", TERRAINS)
    parser.add_names("--teams", TEAMS)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
