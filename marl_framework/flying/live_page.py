"""A page of what one UAV knows, drawn during its flight by another process."""

from __future__ import annotations

import argparse
import os
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from marl_framework.command_line import warn
from marl_framework.config.flying import SIMULATED
from marl_framework.config.model import Config
from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.flying.dry_run import record_of
from marl_framework.flying.messages import Reading
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.simulated import World
from marl_framework.mission.environment import MissionEnvironment

_REFRESH = 5  # of a browser [s]
_NICENESS = 10  # of the process that draws, below that of the pilot


class LivePage:
    """A page of what one UAV knows, renewed after its readings.

    Another process draws it, because a drawing can take seconds, in which the pilot must send and
    hear. It skips readings if it is slower than the flight. If the page cannot be written, a
    warning says so, and the page stays as it is. It shows the map of `world` unless the camera is
    real.
    """

    def __init__(self, path: Path, world: World, options: argparse.Namespace) -> None:
        self._path, self._new, self._moves, self._is_renewed = path, list[Reading](), 0, True
        name, shows_truth = f"UAV {options.uav}", options.camera == SIMULATED
        context = get_context("spawn")
        self._link, theirs = context.Pipe()
        given = theirs, path, name, shows_truth, world.environment.config, world.seed
        process = context.Process(target=_draw, args=given, daemon=True)
        # Ctrl-C and a lost terminal are for the pilot: the new process keeps these signals blocked.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
        process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        assert process.pid is not None
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)

    def update(self, pilot: Pilot) -> None:
        """Have the page drawn if the pilot has fused readings since, without waiting for it."""
        moments = pilot.knowledge.moments
        if len(moments) > self._moves:
            self._moves = len(moments)
            heard = (pilot.inbox.get(Reading, uav, pilot.move) for uav in moments[-1].heard)
            self._new += [pilot.reading, *(reading for reading in heard if reading)]
        if self._new and self._link.poll():
            self._send((self._new, self._moves - 1, _REFRESH))
            self._new = []

    def close(self) -> None:
        """Have the page drawn for the last time, and wait; browsers then stop reloading it."""
        if self._moves:
            self._send((self._new, self._moves - 1, None))
            self._send(None)

    def _send(self, job: tuple[list[Reading], int, int | None] | None) -> None:
        """Wait until the last drawing has ended, and send the next; warn if there will be none."""
        if not self._is_renewed:
            return
        try:
            problem = self._link.recv()
            if problem is None and job is not None:
                self._link.send(job)
        except (EOFError, OSError):
            problem = "the process that draws it has ended"
        if problem is not None:
            self._is_renewed = False
            warn(f"warning: {self._path}: {problem}; the page is not renewed any more")


def _draw(
    link: Connection, path: Path, name: str, shows_truth: bool, config: Config, seed: int
) -> None:
    """Draw the page until the last time; send None after each drawing, or what is wrong."""
    torch.set_num_threads(1)
    world, readings, refresh = World(MissionEnvironment(config, 1, "cpu", "test"), seed), [], 1
    try:
        while refresh is not None:
            link.send(None)
            new, move, refresh = link.recv()
            readings += new
            record = record_of(world, readings, move, name)
            MissionPage({name: record}, 0, refresh, shows_truth).write(path)
        link.send(None)
    except (EOFError, BrokenPipeError):  # the pilot has ended
        return
    except OSError as error:
        link.send(error.strerror)
