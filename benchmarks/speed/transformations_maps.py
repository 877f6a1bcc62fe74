"""The transformation benchmark map by map: what costs what, one at a time and batched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.helpers.harness import CPU, measure, threads
from benchmarks.helpers.mid_mission import Batch, Round, as_plain
from benchmarks.helpers.one_at_a_time import Missions, fuse_heard, fuse_whole_map
from benchmarks.reference import plain_mission
from marl_framework.config.learning import ObservationConfig
from marl_framework.config.model import Config

CHANNELS = ObservationConfig().actor_channels
ONE_THREAD = "kornia cpu one thread"
OWN, HEARD, ALL = "own reading", "fusing", "all 7 channels"


class Baseline:
    """The published way to each map, for UAV i of mission e."""

    def __init__(self, missions: Missions) -> None:
        self._m, self._g = missions, missions.geometry
        self._truth = np.zeros(self._g.cells, dtype=bool)
        self._rng = np.random.default_rng(0)
        self._pooled = plain_mission.area(missions.beliefs[0][0], self._g.lattice)

    def ways(self) -> dict[str, Callable[[int, int], object]]:
        """Return what is timed, by name, in the order of a step."""
        g, m = self._g, self._m
        return {
            OWN: self._own_reading,
            HEARD: lambda e, i: fuse_heard(m, e * m.n_agents + i, fuse_whole_map),
            "budget": lambda e, i: plain_mission.budget(g, m.times[e]),
            "agent_id": lambda e, i: plain_mission.agent_id(g, i, m.n_agents),
            "position": lambda e, i: plain_mission.position(g, m.positions[e], i, m.heard[e][i]),
            "entropy": lambda e, i: plain_mission.entropy(
                plain_mission.area(m.beliefs[e][i], g.lattice)
            ),
            "local_entropy": self._local_entropy,
            "probability": lambda e, i: plain_mission.probability(self._pooled),
            "footprint": self._footprint,
            ALL: self._all,
        }

    def _seen(self, e: int, i: int) -> plain_mission.Footprint:
        return plain_mission.footprint(self._g, self._m.positions[e][i])

    def _own_reading(self, e: int, i: int) -> None:
        reading = plain_mission.measure(self._g, self._truth, self._m.positions[e][i], self._rng)
        fuse_whole_map(self._m.beliefs[e][i], self._seen(e, i), reading, self._g.prior)

    def _local_entropy(self, e: int, i: int) -> object:
        return plain_mission.local_entropy(self._g, self._seen(e, i), self._m.readings[e][i])

    def _footprint(self, e: int, i: int) -> object:
        others = [self._seen(e, j) for j in self._m.heard[e][i] if j != i]
        return plain_mission.footprints(self._g, [self._seen(e, i)], others)

    def _all(self, e: int, i: int) -> object:
        m = self._m
        return plain_mission.actor_observation(
            self._g, m.times[e], i, m.positions[e], m.heard[e][i], m.beliefs[e][i], m.readings[e]
        )


def _batched(config: Config, flown: Round, name: str) -> Callable[[], object]:
    """Return what the library does for the whole batch under one name of `Baseline.ways`."""
    if name in CHANNELS:
        flags = {channel: channel == name for channel in ObservationConfig.model_fields}
        config = config.model_copy(update={"observation": ObservationConfig(**flags)})
    batch = Batch(config, flown)
    return {OWN: batch.take_readings, HEARD: batch.fuse_heard}.get(name, batch.observe)


@torch.no_grad()
def map_rows(
    config: Config,
    flown: Round,
    agents: int,
    devices: list[torch.device],
    seconds: float,
) -> list[dict[str, Any]]:
    """Time every map: the baseline UAV by UAV, the library for `agents` UAVs at once.

    On a CPU the library works in one thread here, so that the maps' times add up.

    The baseline averages the belief when it draws `entropy`, and the reading when it draws
    `local_entropy`; the library keeps both averages up to date in `own reading` and `fusing`.

    Args:
        config: the missions, all 7 channels on.
        flown: see `mid_mission.fly`.
        agents: a multiple of the UAVs of a mission.
        devices: of the library's rows.
        seconds: time budget of each measurement.

    Returns:
        Per map and backend: map, backend, agents, baseline_seconds, seconds_per_map (both per
        UAV), lower_quartile, upper_quartile, repeats, speedup.
    """
    plain = as_plain(config, flown)
    numbers = [divmod(k, plain.n_agents) for k in range(min(agents, plain.agents))]

    def every(way: Callable[[int, int], object]) -> None:
        for e, i in numbers:
            way(e, i)

    found = []
    for name, way in Baseline(plain).ways().items():
        baseline = measure(partial(every, way), seconds).per(len(numbers))
        for device in devices:
            work = _batched(config, flown.repeat(agents // plain.n_agents, device), name)
            with threads(1):
                ours = measure(work, seconds, device, warm_up=2).per(agents)
            found.append(
                {
                    "map": name,
                    "backend": ONE_THREAD if device == CPU else "kornia cuda",
                    "agents": agents,
                    "baseline_seconds": baseline.median,
                    "seconds_per_map": ours.median,
                    "lower_quartile": ours.lower,
                    "upper_quartile": ours.upper,
                    "repeats": ours.repeats,
                    "speedup": baseline.median / ours.median,
                }
            )
    return found
