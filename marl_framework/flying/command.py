"""Fly a simulated team and write what it did into a run folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.flying import RECORD
from marl_framework.config.model import Config
from marl_framework.deployment.survey_files import Survey, write_survey
from marl_framework.device import describe_device
from marl_framework.evaluation.comparison import fly_into_run
from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.flying.dry_run import (
    DryFlight,
    area_place,
    first_difference,
    fly,
    make_pilots,
    simulate,
)
from marl_framework.flying.knowledge import Moment
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.record import facts_of, recording
from marl_framework.flying.simulated import World
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.completion import MapCompletion, make_completion
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.folder import RunFolder

Entries = list[dict[str, Any]]


def dry_run(
    config: Config, device: torch.device, checkpoint: Checkpoint | None, options: argparse.Namespace
) -> int:
    """Fly a team of pilots on simulated vehicles; return the exit code.

    `options` needs `policy`, `seed`, `separation`, `html` and `run_name`. Raises ConfigError if the
    planner or the mission is not supported.
    """
    area_place(config)
    environment, entries = MissionEnvironment(config, 1, device, "test"), Entries()
    make = partial(make_planner, options.policy, checkpoint=checkpoint)
    planner, world = make(environment), World(environment, options.seed)
    completion = make_completion(config, environment.lattice)
    facts = facts_of(config, options.policy, checkpoint, options.seed, options.separation)

    def both(run: RunFolder) -> tuple[list[Pilot], DryFlight, DryFlight]:
        with recording(run.path / RECORD, facts) as wrap:
            pilots = make_pilots(world, make, entries.append, options.separation, wrap)
            flown = fly(world, pilots, completion)
        return pilots, flown, simulate(world, planner)

    def write(
        flights: tuple[list[Pilot], DryFlight, DryFlight], run: RunFolder, seconds: float
    ) -> None:
        pilots, flown, simulated = flights
        maps = flown.record.belief, flown.record.completed
        write_maps(*maps, flown.moments, environment, run.path / "team")
        for pilot in pilots:
            write_own_maps(pilot, completion, run)
        if options.html:
            MissionPage({planner.name: flown.record}).write(run.path / "mission.html")
        results = {
            "planner": planner.name,
            "checkpoint": facts["checkpoint"],
            "seed": options.seed,
            "separation": options.separation,
            "uavs": [summary(pilot, entries) for pilot in pilots],
            "team": flown.scores,
            "simulator": simulated.scores,
            "first_difference": first_difference(flown, simulated),
        }
        run.write_summary(results, {"seconds": seconds}, {"device": describe_device(device)})
        print(_report(results))

    return fly_into_run(config, device, options, both, write)


def write_own_maps(pilot: Pilot, completion: MapCompletion | None, run: RunFolder) -> None:
    """Write the maps of a UAV and the places of its readings into the run folder."""
    known = pilot.knowledge
    belief, completed = known.state.beliefs[:, known.uav], None
    if completion is not None:
        inside = known.state.inside if known.state.inside.numel() else None
        completed = completion(belief, known.noise.caution(), inside)
    folder = run.path / f"uav_{known.uav + 1}"
    write_maps(belief, completed, [known.moments], known.environment, folder)


def write_maps(
    belief: Tensor,
    completed: Tensor | None,
    moments: Sequence[Sequence[Moment]],
    env: MissionEnvironment,
    folder: Path,
) -> None:
    """Write the maps of one mission, [1, R, C], and the places of readings into a new folder."""
    places = ([moment.place for moment in each] for each in moments)
    tracks = [torch.tensor(each, dtype=torch.int64).view(-1, 3) for each in places]
    metres = [env.lattice.metres(track).double().numpy() for track in tracks]
    place, cell = area_place(env.config), env.config.geometry.cell_size
    maps = belief[0].numpy(), None if completed is None else completed[0].numpy()
    write_survey(Survey(*maps, metres, (0.0, 0.0), cell, place), folder)


def summary(pilot: Pilot, entries: Entries, start: float = 0.0) -> dict[str, Any]:
    """Return the results of one UAV; `entries` are those of its team.

    `start`: time when all UAVs were ready, by the clock of the pilot [s].
    """
    known, own = pilot.knowledge, [e for e in entries if e["uav"] == pilot.knowledge.uav]
    return {
        "moves": pilot.move,
        "heard": sum(len(moment.heard) - 1 for moment in known.moments),
        "sent_by_others": len(known.moments) * (known.environment.n_agents - 1),
        "refused": sum(entry["event"] == "refused" for entry in own),
        "left": pilot.end,
        "lost": sorted(pilot.peers.lost),
        "dropped": dict(pilot.inbox.dropped),
        "learned_caution": known.noise.caution().item(),
        "seconds": own[-1]["time"] - start if own else 0.0,
        "end": pilot.place,
    }


def describe(number: int, done: dict[str, Any]) -> str:
    """Return the results of UAV `number` as one line; repeated messages do not count as dropped."""
    dropped = sum(done["dropped"].values()) - done["dropped"].get("double", 0)
    return (
        f"UAV {number}: {done['moves']} moves in {done['seconds']:.0f} s, heard {done['heard']} of "
        f"{done['sent_by_others']} readings, {dropped} messages dropped, "
        f"{done['refused']} moves refused, ends at {tuple(done['end'])}"
    )


def _report(results: dict[str, Any]) -> str:
    lines = [describe(number, done) for number, done in enumerate(results["uavs"], 1)]
    for name in ("team", "simulator"):
        entropy, f1 = results[name].values()
        lines.append(f"{name + ':':10} ROI entropy {entropy:.4f}, F1 {f1:.4f}")
    difference = results["first_difference"]
    lines.append(f"equal: {'yes' if difference is None else f'no, {difference}'}")
    if difference is not None and results["separation"]:
        lines.append("UAVs kept apart; --separation 0 flies by the simulator's rules")
    return "\n".join(lines)
