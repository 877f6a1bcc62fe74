"""One UAV of a team whose pilots run in processes of their own."""

from __future__ import annotations

import argparse
import os
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from marl_framework.command_line import warn
from marl_framework.config.errors import ConfigError
from marl_framework.config.flying import RECORD, SIMULATED
from marl_framework.config.geography import Place
from marl_framework.config.model import Config
from marl_framework.deployment.flight_plans import FlightPlan, open_plan
from marl_framework.deployment.hazards import crossed_ways
from marl_framework.device import describe_device
from marl_framework.evaluation.comparison import fly_into_run
from marl_framework.evaluation.flight import planner_generator
from marl_framework.flying.command import Entries, describe, summary, write_own_maps
from marl_framework.flying.dry_run import (
    area_place,
    check_starts,
    make_pilot,
    with_time_factor,
)
from marl_framework.flying.frame_camera import open_camera
from marl_framework.flying.live_page import LivePage
from marl_framework.flying.mavsdk_vehicle import MavsdkVehicle
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.protocols import Hardware, Log
from marl_framework.flying.record import facts_of, recording
from marl_framework.flying.simulated import World, simulated_hardware
from marl_framework.flying.zenoh_radio import ZenohRadio
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.completion import make_completion
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.folder import RunFolder
from marl_framework.training.signals import handled

ABORT = "abort"
"""File in the run folder that, once it exists, brings the whole team home."""
_PAUSE = 0.05  # of a pilot that waits, by its clock [s]
_EPOCH = 1_767_225_600.0  # 2026-01-01 [s]


class WallClock:
    """Unix time that never steps back; with a factor, it runs faster since 2026."""

    def __init__(self, factor: float = 1.0) -> None:
        self._offset, self._factor = time.time() - time.monotonic() - _EPOCH, factor

    def now(self) -> float:
        """Return the time [s]."""
        return _EPOCH + (self._offset + time.monotonic()) * self._factor


def fly_one(
    config: Config, device: torch.device, checkpoint: Checkpoint | None, options: argparse.Namespace
) -> int:
    """Fly one UAV of a team; return the exit code.

    `options`: see `options.make_parser`. Raises ConfigError if the planner, the mission or the
    hardware is not supported. If this process is interrupted, also by SIGTERM, or the file `ABORT`
    appears in the run folder, the whole team returns. Before all UAVs are ready, only this process
    ends. A lost terminal (SIGHUP) does not end the flight.
    """
    slow = with_time_factor(config, options.time_factor)
    environment, entries = MissionEnvironment(slow, 1, device, "test"), Entries()
    if options.uav > environment.n_agents:
        raise ConfigError(f"--uav {options.uav}: use a number from 1 to {environment.n_agents}")
    world, uav = World(environment, options.seed), options.uav - 1
    check_starts(world, options.separation)
    facts = facts_of(config, options.policy, checkpoint, options.seed, options.separation)
    facts["time_factor"] = options.time_factor
    completion = make_completion(config, environment.lattice)
    stopped: list[BaseException] = []
    make = partial(make_planner, options.policy, checkpoint=checkpoint)
    with torch.no_grad():  # compiles kernels before the flight
        make(environment).act(world.start.clone(), planner_generator(environment, options.seed))
    with ExitStack() as stack:
        stack.enter_context(handled(_interrupt, (signal.SIGTERM, signal.SIGHUP)))
        link = ZenohRadio(world.number, uav, options.radio, options.listen)
        stack.callback(link.close)
        hardware = _equip(world, uav, link, entries.append, options, stack)

        def fly(run: RunFolder) -> tuple[Pilot, float]:
            page = LivePage(run.path / "mission.html", world, options) if options.html else None
            _wait_for_team(link, environment.n_agents, run.path / ABORT)
            ready = hardware.clock.now()
            with recording(run.path / RECORD, facts) as wrap:
                pilot = make_pilot(world, uav, make, hardware, options.separation, wrap)
                while not pilot.over and len(stopped) < 2:
                    try:
                        if not pilot.advance():
                            time.sleep(_PAUSE / options.time_factor)
                        if os.path.exists(run.path / ABORT):  # False if the disk fails
                            pilot.abort(f"the file {ABORT} exists")
                        if page is not None:
                            page.update(pilot)
                    except KeyboardInterrupt as error:
                        stopped.append(error)
                        pilot.abort("interrupted")
                    except Exception as error:
                        stopped[:] = [error, error]
                        hardware.vehicle.return_home()
            if len(stopped) < 2:
                stack.callback(_leave, link)  # also if results cannot be written
            if page is not None:
                page.close()
            return pilot, ready

        def write(flown: tuple[Pilot, float], run: RunFolder, seconds: float) -> None:
            pilot, ready = flown
            write_own_maps(pilot, completion, run)
            done = summary(pilot, entries, ready)
            results = {
                "planner": options.policy,
                "checkpoint": facts["checkpoint"],
                "seed": options.seed,
                "uav": {"number": options.uav, **done},
                "moments": pilot.knowledge.moments,
            }
            run.write_summary(results, {"seconds": seconds}, {"device": describe_device(device)})
            print(describe(options.uav, done))

        code = fly_into_run(config, device, options, fly, write, RECORD)
    for error in stopped:
        raise error
    return code


def _interrupt(number: int, _: FrameType | None) -> None:
    """Survive a lost terminal (SIGHUP); treat SIGTERM as Ctrl-C."""
    if number == signal.SIGTERM:
        raise KeyboardInterrupt


def _leave(link: ZenohRadio) -> None:
    print("waiting until all UAVs have landed", flush=True)
    link.leave()


def _equip(
    world: World,
    uav: int,
    link: ZenohRadio,
    log: Log,
    options: argparse.Namespace,
    stack: ExitStack,
) -> Hardware:
    """Return the hardware of a UAV; `stack` closes its vehicle and camera.

    Raises ConfigError if the location of the area is needed and unknown.
    """
    environment, clock = world.environment, WallClock(options.time_factor)
    hardware = simulated_hardware(world, uav, log, clock, link)
    place = area_place(environment.config)
    if options.vehicle != SIMULATED:
        if "raster" in environment.config.sensor.simulation.kinds:
            raise ConfigError(
                "sensor.simulation.kinds: raster is not supported with --vehicle, because windows "
                "of a map have no fixed location; use another kind"
            )
        if place is None:
            raise ConfigError(
                "deployment.origin: needed by --vehicle; set it to [latitude, longitude] of the "
                "area's lower left corner"
            )
        plan = open_plan(environment, place, uav)
        _warn_of_zones(environment, place, plan)
        vehicle = MavsdkVehicle(options.vehicle, plan, environment, place, clock)
        stack.callback(vehicle.close)
        hardware = hardware._replace(vehicle=vehicle)
    if options.camera != SIMULATED:  # the real range and losses of the radio count
        camera = open_camera(options.camera, environment, place, clock, hardware.vehicle)
        hardware = hardware._replace(camera=stack.enter_context(camera), radio=link)
    return hardware


def _warn_of_zones(environment: MissionEnvironment, place: Place, plan: FlightPlan) -> None:
    """Print a warning if ways between the pad and the area cross a zone."""
    if environment.zones is None:
        return
    lattice, level = environment.lattice, plan.return_altitude
    x, y = place.metres(np.array([plan.home[::-1]]))[0].tolist()
    if crossed := crossed_ways(environment.zones, lattice, (x, y, level)):
        warn(
            f"warning: UAV {plan.uav} flies between its pad and the area in a straight line, at "
            f"{level:g} m; for {crossed} of {lattice.shape[0] * lattice.shape[1]} positions the "
            "line crosses a no-fly zone; set deployment.home so that none does"
        )


def _wait_for_team(radio: ZenohRadio, team: int, abort: Path) -> None:
    """Wait until all UAVs have been reached; print those that are missing.

    Raises KeyboardInterrupt if the file `abort` appears.
    """
    missing, known = set(range(team)), set[int]()
    while missing := missing - radio.present:
        if missing != known:
            names = ", ".join(str(uav + 1) for uav in sorted(missing))
            print(f"waiting for UAV {names}", flush=True)
        known = missing
        if abort.exists():
            print(f"the file {ABORT} exists", flush=True)
            raise KeyboardInterrupt
        time.sleep(_PAUSE)
