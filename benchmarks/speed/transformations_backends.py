"""Backends of the transformation benchmark, and their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.helpers import harness, one_at_a_time
from benchmarks.helpers.harness import CPU, Timing
from benchmarks.helpers.mid_mission import Batch, Round, as_plain, fly
from benchmarks.helpers.one_at_a_time import Missions, fuse_whole_map, observe_all
from benchmarks.reference import plain_mission
from marl_framework.config.learning import ObservationConfig
from marl_framework.config.model import Config
from marl_framework.training.memory import device_memory

CHANNELS = ObservationConfig().actor_channels
ONE_THREAD = "kornia cpu one thread"
DIFFERS = "differs from the baseline"
TOLERANCE = 1e-4
JUMPS = (0.499, 0.501)  # of the entropy's weight
NEAR_JUMP = 1e-5  # cells this close to a jump depend on rounding

Work = Callable[[], Tensor | None]


@dataclass
class Row:
    """One backend with one number of UAVs; times [s] are per observation."""

    backend: str
    agents: int
    missions: int
    uavs_per_mission: int
    measured_agents: int | None = None
    seconds_per_observation: float | None = None
    lower_quartile: float | None = None
    upper_quartile: float | None = None
    repeats: int | None = None
    observations_per_second: float | None = None
    speedup: float | None = None
    """Speedup against `opencv` with the same number of UAVs."""
    speedup_windowed: float | None = None
    max_error: float | None = None
    status: str = "ok"

    def take(self, agents: int, timing: Timing, error: float) -> None:
        """Fill in the measurement of `agents` observations at once."""
        each = timing.per(agents)
        self.measured_agents = agents
        self.seconds_per_observation = each.median
        self.lower_quartile, self.upper_quartile = each.lower, each.upper
        self.repeats = each.repeats
        self.observations_per_second = 1 / each.median
        self.max_error = error
        if not error <= TOLERANCE:
            self.status = DIFFERS


@dataclass
class Recorded:
    """Flown missions, and the observations of the baseline."""

    config: Config
    flown: Round
    plain: Missions
    expected: NDArray[np.float32]
    """Observations of the baseline, [UAVs, X, Y, 7]."""
    counted: NDArray[np.bool_]
    """Compared cells: all except those that depend on rounding, see `counted_cells`."""

    @classmethod
    def of(cls, config: Config, missions: int) -> Recorded:
        """Fly and observe."""
        flown = fly(config, missions)
        plain = as_plain(config, flown)
        expected = np.stack(observe_all(plain.fresh(), plain.agents, fuse_whole_map))
        return cls(config, flown, plain, expected, counted_cells(plain, expected))

    def largest_error(self, observations: NDArray[np.floating[Any]]) -> float:
        """Compare observations [UAVs, X, Y, 7] of the first UAVs, or of all UAVs repeated."""
        which = np.arange(len(observations)) % len(self.expected)
        differences = np.abs(observations - self.expected[which])[self.counted[which]]
        return float(np.nan_to_num(differences.max(), nan=np.inf))


def counted_cells(plain: Missions, expected: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return the cells of observations [UAVs, X, Y, 7] that do not depend on rounding."""
    geometry = plain.geometry
    squares = []
    for number in range(plain.agents):
        mission, agent = divmod(number, plain.n_agents)
        seen = plain_mission.footprint(geometry, plain.positions[mission][agent])
        square = plain_mission.square(seen, plain.readings[mission][agent])
        squares.append(plain_mission.area(square, geometry.lattice))
    pooled = {
        "entropy": expected[..., CHANNELS.index("probability")],
        "local_entropy": np.stack(squares),
    }
    counted = np.ones(expected.shape, dtype=bool)
    for name, values in pooled.items():
        distance = np.min([np.abs(values - jump) for jump in JUMPS], axis=0)
        counted[..., CHANNELS.index(name)] = distance >= NEAR_JUMP
    return counted


# Backends ---------------------------------------------------------------------------------


def _eager(work: Work, batch: Batch) -> Work:
    return work


def _captured(work: Work, batch: Batch) -> Work:
    """Capture work as a CUDA graph; restore the state afterwards."""
    kept = batch.state.clone()
    with torch.cuda.device(batch.state.t.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries set themselves up before the capture
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = work()
    for name, value in kept.tensors():
        getattr(batch.state, name).copy_(value)

    def replay() -> Tensor | None:
        graph.replay()
        return result

    return replay


Prepare = Callable[[Work, Batch], Work]
ON_CUDA: dict[str, Prepare] = {
    "kornia cuda": _eager,
    "kornia cuda graph": _captured,
}
ON_CPU = ("opencv", "opencv windowed", "opencv pool", "kornia cpu", ONE_THREAD)
BACKENDS = (*ON_CPU, *ON_CUDA)


@dataclass
class Bench:
    """Measures all backends."""

    recorded: dict[int, Recorded]
    """Missions by team size."""
    pool: one_at_a_time.Pool
    pool_sees: dict[int, NDArray[np.float32]]
    """First observations of the pool, when the beliefs of its processes were as recorded."""
    device: torch.device
    seconds: float

    def rows(self, agents: int) -> list[Row]:
        """Return one row per backend, for a number of UAVs."""
        recorded = self.recorded[min(agents, max(self.recorded))]
        plain = recorded.plain
        measured = min(agents, plain.agents)
        rows = []
        for name in BACKENDS:
            row = Row(name, agents, agents // plain.n_agents, plain.n_agents)
            if name.startswith("opencv"):
                self._one_at_a_time(row, recorded, measured)
            elif name in ON_CPU:
                with harness.threads(1 if name == ONE_THREAD else torch.get_num_threads()):
                    self._batched(row, recorded, _eager, CPU)
            elif self.device.type == "cuda":
                self._batched(row, recorded, ON_CUDA[name], self.device)
            elif torch.cuda.is_available():
                row.status = f"not measured: compute.device is {self.device}"
            else:
                row.status = "no CUDA device found"
            rows.append(row)
        opencv, windowed = (rows[BACKENDS.index(n)] for n in ("opencv", "opencv windowed"))
        for row in rows:
            row.speedup = _speedup(row, opencv)
            row.speedup_windowed = _speedup(row, windowed)
        return rows

    def _one_at_a_time(self, row: Row, recorded: Recorded, agents: int) -> None:
        """Measure the first `agents` UAVs; each costs the same however many there are."""
        n_agents = recorded.plain.n_agents
        if row.backend == "opencv pool":
            seen = self.pool_sees[n_agents][:agents]
            timing = harness.measure(lambda: self.pool(n_agents, agents), self.seconds)
        else:
            plain = recorded.plain.fresh()
            fuse = plain_mission.fuse if row.backend == "opencv windowed" else fuse_whole_map
            seen = np.stack(observe_all(plain, agents, fuse))
            timing = harness.measure(lambda: observe_all(plain, agents, fuse), self.seconds)
        row.take(agents, timing, recorded.largest_error(seen))

    def _batched(
        self, row: Row, recorded: Recorded, prepare: Prepare, device: torch.device
    ) -> None:
        needed = _bytes_needed(recorded.flown, row.missions)
        if needed > device_memory(device)[0]:
            row.status = f"needs {needed / 2**30:.0f} GiB of memory"
            return
        try:
            batch = Batch(recorded.config, recorded.flown.repeat(row.missions, device))
            work = prepare(batch.all_of_it, batch)
            seen = work()
            assert seen is not None
            first = seen.movedim(2, -1).flatten(0, 1).cpu().numpy()
            timing = harness.measure(work, self.seconds, device, warm_up=2)
        except Exception as error:
            if device == CPU:
                raise
            # Compilers and graph capture fail in many ways; the other rows are still valid.
            row.status = f"failed: {str(error).strip().partition(chr(10))[0][:200]}"
            return
        row.take(row.agents, timing, recorded.largest_error(first))


def _speedup(row: Row, baseline: Row) -> float | None:
    ours, theirs = row.observations_per_second, baseline.observations_per_second
    return ours / theirs if ours and theirs else None


def _bytes_needed(flown: Round, missions: int) -> int:
    """Return the memory of a batch [bytes]: state, indices and intermediate window maps."""
    each = sum(value.nbytes for _, value in flown.state.tensors()) // len(flown.bits)
    return missions * (each + 48 * flown.bits[0].numel())
