"""Record steps of random missions of the plain baseline, for `reference.replay`.

    python -m benchmarks.reference.record FOLDER

writes a small set of cases, `FOLDER/case_NN.npz`, reproducibly. A case holds one step:

| array | shape | content |
|---|---|---|
| `n_agents`, `num_actions`, `communication_range` [m], `budget`, `t` | scalars | the mission |
| `config` | text | JSON of all settings that differ from the defaults; optional |
| `truth` | R×C uint8 | region of interest |
| `positions_m` | N×3 | positions [m] when observing |
| `measurements` | N×R×C | latest reading of each agent on the map, 0.5 outside its footprint |
| `tiles`, `tile_sizes` | N×K×K, N | the same in the unclipped footprint square, NaN past its size |
| `beliefs_before`, `heard`, `beliefs_after` | N×R×C, N×N, N×R×C | before and after fusing |
| `actor_observation` | N×X×Y×7 | observation of the actor |
| `global_before`, `global_after` | R×C | global belief before and after fusing all readings |
| `actions`, `next_positions_m` | N, N×3 | chosen in order 0 … N−1 |
| `boundary_mask`, `action_mask` | N×A | 1 = allowed: by the lattice; by the earlier agents too |
| `critic_state` | N×X×Y×12 | state of the critic |
| `utility_absolute`, `utility_relative` | scalars | from `global_before` to `global_after` |
| `roi_entropy`, `f1_roi` | scalars | of `global_after` against `truth` |

The first axis of all maps is x. `heard[i, j]` says whether i hears j.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reference import plain_mission
from benchmarks.reference.plain_mission import Footprint, Geometry, Map, Position
from marl_framework.command_line import BAD_INPUT, Parser
from marl_framework.config.loading import config_from_dict
from marl_framework.config.model import Config

SEED = 355  # of the recorded cases
Case = dict[str, NDArray[Any]]


def _side_truth(geometry: Geometry, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw a ground truth: 30 to 60 % of the map, from one of its sides."""
    truth = np.zeros(geometry.cells, dtype=bool)
    along = truth if rng.random() < 0.5 else truth.T
    depth = round(len(along) * rng.uniform(0.3, 0.6))
    along[slice(depth) if rng.random() < 0.5 else slice(len(along) - depth, None)] = True
    return truth


def spread_start(geometry: Geometry, n_agents: int, rng: np.random.Generator) -> list[Position]:
    """Draw distinct cells at the highest altitude."""
    x, y, z = geometry.lattice
    cells = rng.permutation(x * y)[:n_agents]
    return [(int(cell) // y, int(cell) % y, z - 1) for cell in cells]


def crowded_start(geometry: Geometry, n_agents: int, rng: np.random.Generator) -> list[Position]:
    """Draw the cells nearest to a random one, at any altitude, so that agents collide."""
    x_size, y_size, z_size = geometry.lattice
    x0, y0 = rng.integers(x_size), rng.integers(y_size)
    cells = sorted(
        product(range(x_size), range(y_size)),
        key=lambda cell: math.hypot(cell[0] - x0, cell[1] - y0),
    )
    return [(x, y, int(rng.integers(z_size))) for x, y in cells[:n_agents]]


def stacked_start(geometry: Geometry, n_agents: int, rng: np.random.Generator) -> list[Position]:
    """Draw crowded cells for half of the agents, and put the others above or below them."""
    z_size = geometry.lattice[2]
    first = crowded_start(geometry, (n_agents + 1) // 2, rng)
    return [*first, *((x, y, (z + 1) % z_size) for x, y, z in first)][:n_agents]


class Flight:
    """A random mission of the plain baseline: `look`, `act` and `move` repeatedly.

    Args:
        config: the mission, except its communication range.
        start: lattice position of each agent.
        communication_range: radio range [m].
        rng: source of truth, sensor, radio and policy.
    """

    def __init__(
        self,
        config: Config,
        start: Sequence[Position],
        communication_range: float,
        rng: np.random.Generator,
    ) -> None:
        self.config, self.geometry = config, Geometry.of(config)
        self.communication_range, self._rng = communication_range, rng
        self.positions = list(start)
        self.agents = range(len(start))
        self.t = 0
        self.truth = _side_truth(self.geometry, rng)
        cells, prior = self.geometry.cells, self.geometry.prior
        self.beliefs = [np.full(cells, prior, np.float32) for _ in start]
        self.global_belief = np.full(cells, prior, np.float32)

    def look(self) -> None:
        """Measure, hear, and fuse the heard readings."""
        g, prior = self.geometry, self.geometry.prior
        self.seen = [plain_mission.footprint(g, place) for place in self.positions]
        self.readings = [
            plain_mission.measure(g, self.truth, place, self._rng) for place in self.positions
        ]
        for i in self.agents:
            plain_mission.fuse(self.beliefs[i], self.seen[i], self.readings[i], prior)
        self.beliefs_before = np.stack(self.beliefs)
        self.global_before = self.global_belief.copy()
        failure_rate = self.config.experiment.uav.failure_rate
        lost = self._rng.random((len(self.agents), len(self.agents))) < failure_rate
        self.heard = [[j for j in self.agents if self._hears(i, j, lost)] for i in self.agents]
        for i in self.agents:
            plain_mission.fuse(self.global_belief, self.seen[i], self.readings[i], prior)
            for j in self.heard[i]:
                if j != i:
                    plain_mission.fuse(self.beliefs[i], self.seen[j], self.readings[j], prior)

    def _hears(self, i: int, j: int, lost: NDArray[np.bool_]) -> bool:
        places = self.positions[i], self.positions[j]
        in_reach = plain_mission.near(self.geometry, *places, self.communication_range)
        return i == j or (in_reach and not lost[i, j])

    def act(self) -> None:
        """Choose random actions, one agent after the other."""
        self.actions: list[int] = []
        self.masks: list[NDArray[np.bool_]] = []
        self.goals: list[Position] = []
        for place in self.positions:
            self.masks.append(plain_mission.action_mask(self.geometry, place, self.goals))
            self.actions.append(int(self._rng.choice(np.flatnonzero(self.masks[-1]))))
            self.goals.append(plain_mission.move(self.geometry, place, self.actions[-1]))

    def move(self) -> None:
        """Make the chosen moves."""
        self.positions = self.goals
        self.t += 1

    def observe(self) -> tuple[Map, Map]:
        """Return observations [N, X, Y, 7] and critic states [N, X, Y, 12]."""
        g, places = self.geometry, self.positions
        actor = np.stack(
            [
                plain_mission.actor_observation(
                    g, self.t, i, places, self.heard[i], self.beliefs[i], self.readings
                )
                for i in self.agents
            ]
        )
        extra = [
            plain_mission.critic_extra(g, i, places, self.actions, self.global_belief)
            for i in self.agents
        ]
        return actor, np.concatenate([actor, np.stack(extra)], axis=-1)

    def case(self) -> Case:
        """Return the arrays of the current step, after `look` and `act`."""
        g = self.geometry
        actor, critic = self.observe()
        absolute, relative = plain_mission.utilities(self.global_before, self.global_belief)
        boundary = [plain_mission.boundary_mask(g, place) for place in self.positions]
        return {
            "config": np.array(_settings(self.config)),
            "n_agents": np.array(len(self.agents)),
            "num_actions": np.array(len(g.offsets)),
            "communication_range": np.array(float(self.communication_range)),
            "budget": np.array(g.budget),
            "t": np.array(self.t),
            "truth": self.truth.astype(np.uint8),
            "positions_m": np.stack([g.metres(place) for place in self.positions]),
            **_reading_arrays(g, self.seen, self.readings),
            "beliefs_before": self.beliefs_before,
            "heard": np.array([[j in heard for j in self.agents] for heard in self.heard]),
            "beliefs_after": np.stack(self.beliefs),
            "actor_observation": actor,
            "global_before": self.global_before,
            "global_after": self.global_belief.copy(),
            "actions": np.array(self.actions),
            "boundary_mask": np.stack(boundary).astype(np.int8),
            "action_mask": np.stack(self.masks).astype(np.int8),
            "next_positions_m": np.stack([g.metres(place) for place in self.goals]),
            "critic_state": critic,
            "utility_absolute": np.array(absolute),
            "utility_relative": np.array(relative),
            "roi_entropy": np.array(plain_mission.roi_entropy(self.global_belief, self.truth)),
            "f1_roi": np.array(plain_mission.f1(self.global_belief, self.truth)),
        }


def fly(flight: Flight, steps: int) -> Case:
    """Make random moves, then record a step."""
    for _ in range(steps):
        flight.look()
        flight.act()
        flight.move()
    flight.look()
    flight.act()
    return flight.case()


def _reading_arrays(geometry: Geometry, seen: Sequence[Footprint], readings: Sequence[Map]) -> Case:
    """Return the readings on the map and, if footprints are square, in their squares."""
    measurements = np.full((len(seen), *geometry.cells), plain_mission.UNKNOWN, np.float32)
    for full, cells, reading in zip(measurements, seen, readings, strict=True):
        full[cells.window] = reading
    if any(cells.side_x != cells.side_y for cells in seen):
        return {"measurements": measurements}
    sizes = np.array([cells.side_x for cells in seen])
    tiles = np.full((len(seen), sizes.max(), sizes.max()), np.nan, np.float32)
    for tile, size, cells, reading in zip(tiles, sizes, seen, readings, strict=True):
        tile[:size, :size] = plain_mission.square(cells, reading)
    return {"measurements": measurements, "tiles": tiles, "tile_sizes": sizes}


def _settings(config: Config) -> str:
    """Return the settings that differ from the defaults, as JSON."""
    return json.dumps(config.model_dump(by_alias=True, exclude_defaults=True))


def _config(size: tuple[float, float], pixels: int, agents: int, *overrides: str) -> Config:
    common = [
        *(f"environment.x_dim={size[0]}", f"environment.y_dim={size[1]}"),
        *(f"sensor.pixel.number_{axis}={pixels}" for axis in "xy"),
        f"experiment.missions.n_agents={agents}",
    ]
    return config_from_dict({}, overrides=[*common, *overrides])


def small_cases() -> list[Case]:
    """Fly missions with all action sets, ranges from 0 to infinity, and maps of many shapes."""
    limits, sensor = "experiment.constraints", "sensor.model"
    budget = (f"{limits}.num_actions=9", f"{limits}.budget=7")
    lossy = ("experiment.uav.failure_rate=0.4", "mapping.prior=0.4", f"{limits}.num_actions=4")
    exponential = (f"{sensor}.type=exponential", f"{sensor}.coeff_a=0.4", f"{sensor}.coeff_b=0.1")
    high = (f"{limits}.max_altitude=25", *exponential)
    missions = [
        # mission, range [m], moves before the recorded step, start
        (_config((50, 50), 12, 4), 25.0, 6, crowded_start),
        (_config((20, 20), 12, 3, f"{limits}.num_actions=27"), 0.0, 1, crowded_start),
        (_config((30, 45), 10, 5, *budget), 15.0, 7, crowded_start),
        (_config((40, 20), 16, 6, *lossy), math.inf, 0, stacked_start),
        (_config((25, 35), 7, 2, *high), 20.0, 10, spread_start),
    ]
    cases = []
    for number, (config, communication_range, steps, draw) in enumerate(missions):
        rng = np.random.default_rng([SEED, number])
        start = draw(Geometry.of(config), config.missions.most_agents, rng)
        cases.append(fly(Flight(config, start, communication_range, rng), steps))
    return cases


def write_case(path: Path, case: Case) -> None:
    """Write one case as a compressed NPZ file."""
    np.savez_compressed(path, **case)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the cases into a folder; return the exit code."""
    parser = Parser(prog="python -m benchmarks.reference.record")
    parser.description = "Record small cases for benchmarks.reference.replay."
    parser.add_argument("folder", type=Path, help="where case_NN.npz files are written")
    folder: Path = parser.parse_args(arguments).folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, case in enumerate(small_cases()):
            path = folder / f"case_{number:02d}.npz"
            write_case(path, case)
            print(f"{path}: {path.stat().st_size / 1024:.0f} kB")
    except OSError as error:
        print(f"error: {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
