"""Fly a simulated team and write what it did into a run folder."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from marl_framework.config.model import Config
from marl_framework.device import describe_device
from marl_framework.evaluation.comparison import fly_into_run
from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.flying.dry_run import (
    DryFlight,
    Moment,
    first_difference,
    fly,
    make_pilots,
    make_world,
    simulate,
)
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.record import facts_of, recording
from marl_framework.flying.survey import area_place, write_belief
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.folder import RunFolder

RECORD = "flight.mcap"
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
    planner, world = make(environment), make_world(environment, options.seed)
    facts = facts_of(config, options.policy, checkpoint, options.seed, options.separation)

    def both(run: RunFolder) -> tuple[list[Pilot], DryFlight, DryFlight]:
        with recording(run.path / RECORD, facts, environment) as wrap:
            pilots = make_pilots(
                world, make, options.seed, entries.append, options.separation, wrap=wrap
            )
            flown = fly(world, pilots)
        return pilots, flown, simulate(world, planner, options.seed)

    def write(
        flights: tuple[list[Pilot], DryFlight, DryFlight], run: RunFolder, seconds: float
    ) -> None:
        pilots, flown, simulated = flights
        difference = first_difference(flown, simulated)
        tracks = [[moment.place for moment in moments] for moments in flown.moments]
        write_belief(flown.belief, tracks, environment, run.path / "team")
        for uav, pilot in enumerate(pilots):
            belief, folder = pilot.knowledge.state.beliefs[0, uav], run.path / f"uav_{uav + 1}"
            write_belief(belief, tracks[uav : uav + 1], environment, folder)
        if options.html:
            MissionPage({planner.name: flown.record}).write(run.path / "mission.html")
        results = {
            "planner": planner.name,
            "checkpoint": None if checkpoint is None else checkpoint.name,
            "seed": options.seed,
            "separation": options.separation,
            "uavs": [
                summary(pilot, flown.moments[uav], [e for e in entries if e["uav"] == uav])
                for uav, pilot in enumerate(pilots)
            ],
            "team": {"roi_entropy": flown.roi_entropy, "f1": flown.f1},
            "simulator": {"roi_entropy": simulated.roi_entropy, "f1": simulated.f1},
            "first_difference": difference,
        }
        run.write_summary(results, {"seconds": seconds}, {"device": describe_device(device)})
        print(_report(results))

    return fly_into_run(config, device, options, both, write)


def summary(pilot: Pilot, moments: list[Moment], entries: Entries) -> dict[str, Any]:
    """Return the results of one UAV, with `entries` of its own."""
    return {
        "moves": pilot.move,
        "heard": sum(len(moment.heard) - 1 for moment in moments),
        "sent_by_others": len(moments) * (pilot.knowledge.state.positions.shape[1] - 1),
        "refused": sum(entry["event"] == "refused" for entry in entries),
        "left": pilot.end,
        "lost": sorted(pilot.peers.lost),
        "dropped": dict(pilot.inbox.dropped),
        "seconds": entries[-1]["time"] if entries else 0.0,
        "end": pilot.place,
    }


def describe(number: int, done: dict[str, Any]) -> str:
    """Return the results of UAV `number` as one line."""
    heard = f"heard {done['heard']} of {done['sent_by_others']} readings"
    dropped = f"{sum(done['dropped'].values())} messages dropped"
    return (
        f"UAV {number}: {done['moves']} moves in {done['seconds']:.0f} s, {heard}, {dropped}, "
        f"{done['refused']} moves refused, ends at {tuple(done['end'])}"
    )


def _report(results: dict[str, Any]) -> str:
    lines = [describe(number, done) for number, done in enumerate(results["uavs"], 1)]
    for name in ("team", "simulator"):
        values = results[name]
        lines.append(
            f"{name + ':':10} ROI entropy {values['roi_entropy']:.4f}, F1 {values['f1']:.4f}"
        )
    difference = results["first_difference"]
    lines.append(f"equal: {'yes' if difference is None else f'no, {difference}'}")
    if difference is not None and results["separation"]:
        lines.append("UAVs kept apart; --separation 0 flies by the simulator's rules")
    return "\n".join(lines)
