"""Batched observations against the plain baseline, one agent at a time, on drawn missions."""

import math
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.reference import plain_mission
from benchmarks.reference.plain_mission import Geometry, Position
from benchmarks.reference.record import Case, Flight, fly
from benchmarks.reference.replay import TOLERANCES, pairs, replay
from marl_framework.config.model import Config

JUMPS = (0.499, 0.501)  # of the weight that entropy channels are multiplied with
BESIDE_A_JUMP = 1e-5


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Missions of 1 … 6 agents over maps of any shape, some smaller than a footprint."""
    spacing = draw(st.sampled_from([2.5, 5.0, 10.0]))
    lowest = draw(st.sampled_from([5.0, 7.5]))
    levels = draw(st.integers(1, 1 + int((25.0 - lowest) // spacing)))

    def length() -> float:
        return (draw(st.integers(1, 8)) + draw(st.sampled_from([0.0, 0.3, 0.9]))) * spacing

    tree = {
        "environment": {"x_dim": length(), "y_dim": length()},
        "sensor": {
            "field_of_view": {
                "angle_x": draw(st.sampled_from([60.0, 90.0])),
                "angle_y": draw(st.sampled_from([60.0, 45.0])),
            },
            "pixel": {"number_x": draw(st.integers(2, 20)), "number_y": draw(st.integers(2, 20))},
        },
        "mapping": {"prior": draw(st.sampled_from([0.5, 0.5, 0.3]))},
        "experiment": {
            "constraints": {
                "spacing": spacing,
                "min_altitude": lowest,
                "max_altitude": lowest + (levels - 1) * spacing,
                "budget": draw(st.integers(1, 6)),
                "num_actions": draw(st.sampled_from([4, 6, 9, 27])),
            },
            "uav": {"failure_rate": draw(st.sampled_from([0.0, 0.0, 0.4, 1.0]))},
            "missions": {"n_agents": draw(st.integers(1, 6))},
        },
    }
    try:
        return Config.model_validate(tree)
    except ValidationError:  # a lattice finer than the map, or too small for the agents
        assume(False)
        raise


def coordinates(size: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, size - 1]) | st.integers(0, size - 1)


@st.composite
def missions(draw: st.DrawFn) -> tuple[Config, list[Case]]:
    """Two missions of one configuration, flown by the baseline from edges, corners and inside.

    Agents may start in one place, so that their marks in a map fall onto each other.
    """
    config = draw(configs())
    places = st.tuples(*(coordinates(size) for size in config.geometry.lattice_shape))
    cases = []
    for _ in range(2):
        n = config.missions.most_agents
        start: list[Position] = draw(st.lists(places, min_size=n, max_size=n))
        flight = Flight(
            config,
            start,
            communication_range=draw(st.sampled_from([0.0, 5.0, 15.0, 25.0, 100.0, math.inf])),
            rng=np.random.default_rng(draw(st.integers(0, 2**32))),
        )
        steps = draw(st.integers(0, max(config.missions.budgets)))
        cases.append(fly(flight, steps))
    return config, cases


def beside_a_jump(pooled: np.ndarray) -> np.ndarray:
    return np.min([np.abs(pooled - jump) for jump in JUMPS], axis=0) < BESIDE_A_JUMP


def left_out(config: Config, case: Case) -> dict[str, np.ndarray]:
    """Return, for each weighted channel, the cells where rounding decides about the weight."""
    geometry = Geometry.of(config)

    def pool(maps: Any) -> np.ndarray:
        return np.stack([plain_mission.area(each, geometry.lattice) for each in maps])

    indices = np.rint((case["positions_m"] - [0, 0, geometry.altitudes[0]]) / geometry.spacing)
    seen = [plain_mission.footprint(geometry, (int(x), int(y), int(z))) for x, y, z in indices]
    squares = [
        plain_mission.square(cells, reading[cells.window])
        for cells, reading in zip(seen, case["measurements"], strict=True)
    ]
    own, local = beside_a_jump(pool(case["beliefs_after"])), beside_a_jump(pool(squares))
    return {
        "actor_observation: entropy": own,
        "actor_observation: local_entropy": local,
        "critic_state: entropy": own,
        "critic_state: local_entropy": local,
        "critic_state: global_entropy": beside_a_jump(pool([case["global_after"]] * len(seen))),
    }


@settings(max_examples=100)
@given(missions())
def test_project_equals_reference(mission: tuple[Config, list[Case]]) -> None:
    config, cases = mission
    computed = replay(cases, config)
    for e, case in enumerate(cases):
        skipped = left_out(config, case)
        assert all(cells.mean() < 0.05 for cells in skipped.values())
        mine = {name: array[e] for name, array in computed.items()}
        for name, (expected, got) in pairs(case, mine).items():
            keep = ~skipped.get(name, np.zeros(np.shape(expected), dtype=bool))
            tolerance = TOLERANCES[name.split(":")[0]]
            # Utilities can cancel to nothing, where a relative error means little.
            np.testing.assert_allclose(
                np.asarray(got)[keep],
                np.asarray(expected)[keep],
                rtol=tolerance if name.startswith("utility") else 0,
                atol=1e-7 if name.startswith("utility") else tolerance,
                err_msg=name,
            )
