"""Fusion and observation as in the published code: one UAV after the other, numpy and OpenCV.

This module does not import PyTorch, so that the processes of a pool start small. The maps are
those of `benchmarks.reference.plain_mission`; fusion passes over the whole map.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import cv2
import numpy as np

from benchmarks.reference import plain_mission
from benchmarks.reference.plain_mission import Footprint, Geometry, Map, Position

Fuse = Callable[[Map, Footprint, Map, float], None]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_KEPT_BYTES = 2**25  # maximum that glibc accepts


@dataclass(frozen=True)
class Missions:
    """Missions of N UAVs with received readings that are not fused yet; lists by mission and UAV.

    `observe` updates `beliefs` in place.
    """

    geometry: Geometry
    times: list[int]
    positions: list[list[Position]]
    heard: list[list[list[int]]]
    """Ids of the UAVs that each UAV hears, itself included."""
    readings: list[list[Map]]
    """Latest reading of each UAV: likelihoods in its clipped footprint."""
    beliefs: list[list[Map]]

    @property
    def n_agents(self) -> int:
        """Number of UAVs per mission."""
        return len(self.positions[0])

    @property
    def agents(self) -> int:
        """Number of UAVs in all missions."""
        return len(self.positions) * self.n_agents

    def fresh(self) -> Missions:
        """Return the same missions with copied beliefs."""
        return replace(self, beliefs=[[belief.copy() for belief in team] for team in self.beliefs])

    def senders(self, number: int) -> list[int]:
        """Return the ids of the other UAVs whose readings UAV `number` fuses."""
        mission, agent = divmod(number, self.n_agents)
        return [j for j in self.heard[mission][agent] if j != agent]


def fuse_whole_map(belief: Map, seen: Footprint, reading: Map, prior: float) -> None:
    """Fuse a reading into a belief in place, as published: as a map of the belief's size."""
    measured = np.full(belief.shape, plain_mission.UNKNOWN, np.float32)
    measured[seen.window] = reading
    updated = plain_mission.bayes(belief, measured, prior)
    np.copyto(belief, updated, where=measured != plain_mission.UNKNOWN)


def observe(missions: Missions, number: int, fuse: Fuse) -> Map:
    """Fuse the readings that UAV `number` heard, in id order; return the observation [X, Y, 7]."""
    mission, agent = divmod(number, missions.n_agents)
    geometry, positions = missions.geometry, missions.positions[mission]
    belief, readings = missions.beliefs[mission][agent], missions.readings[mission]
    for j in missions.senders(number):
        seen = plain_mission.footprint(geometry, positions[j])
        fuse(belief, seen, readings[j], geometry.prior)
    heard = missions.heard[mission][agent]
    return plain_mission.actor_observation(
        geometry, missions.times[mission], agent, positions, heard, belief, readings
    )


def observe_all(missions: Missions, agents: int, fuse: Fuse) -> list[Map]:
    """Return the observations of the first `agents` UAVs."""
    return [observe(missions, number, fuse) for number in range(agents)]


def keep_freed_memory() -> None:
    """Keep freed memory blocks of up to 32 MiB in this process (glibc only).

    Otherwise glibc may return freed arrays to the system. New arrays then cost a page fault every
    4 KiB, and the same numpy code takes 2 or 6 ms by chance.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, -1)


# A pool of processes ----------------------------------------------------------------------

_process_missions: dict[int, Missions] = {}  # missions in a pool process, by team size

Pool = Callable[[int, int], list[Map]]
"""Function of a team size and a number of UAVs that returns the UAVs' observations."""


@contextmanager
def process_pool(missions: dict[int, Missions], processes: int) -> Iterator[Pool]:
    """Open a pool of processes that hold the missions and observe as in the published code."""
    context = get_context("spawn")
    with context.Pool(processes, initializer=_start_process, initargs=(missions,)) as pool:

        def observe_first(n_agents: int, agents: int) -> list[Map]:
            return pool.map(partial(_observe_in_process, n_agents), range(agents))

        yield observe_first


def _start_process(missions: dict[int, Missions]) -> None:
    keep_freed_memory()
    cv2.setNumThreads(1)  # the processes share the cores
    _process_missions.update(missions)


def _observe_in_process(n_agents: int, number: int) -> Map:
    return observe(_process_missions[n_agents], number, fuse_whole_map)
