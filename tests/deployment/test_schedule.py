"""Schedules: durations are those of a simulation, and all UAVs fly in step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.config.mission import DeploymentConfig
from marl_framework.deployment.schedule import (
    AFTER,
    BEFORE,
    JERK,
    leg_seconds,
    team_schedule,
    team_stops,
)
from tests.deployment.flying import simulated_seconds

METRES = st.integers(-30, 30)
SETTINGS = st.builds(
    DeploymentConfig,
    speed=st.floats(1, 15),
    climb_speed=st.floats(1, 6),
    descent_speed=st.floats(1, 6),
    acceleration=st.floats(0.5, 5),
    separation=st.floats(1, 20),
    pad_distance=st.floats(20, 30),
)
READINGS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def random_tracks(readings: list[int], seed: int) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [5.0 * draw.integers(0, 8, (number, 3)) + [0, 0, 5] for number in readings]


@settings(max_examples=20)
@given(way=st.tuples(METRES, METRES, METRES).filter(any), config=SETTINGS)
def test_a_leg_takes_as_long_as_in_a_simulation(
    way: tuple[int, int, int], config: DeploymentConfig
) -> None:
    expected = simulated_seconds(np.zeros(3), np.array(way), config, config.acceleration)
    found = float(leg_seconds(np.zeros(3), np.array(way), config))
    assert found == pytest.approx(expected + config.acceleration / JERK, rel=0.01, abs=0.05)


def test_no_leg_takes_no_time() -> None:
    assert leg_seconds(np.ones(3), np.ones(3), DeploymentConfig()) == 0


def test_no_uav_reaches_its_speed_on_a_short_leg() -> None:
    """2 m/s² for 2.5 m, and as long to stop."""
    leg = leg_seconds(np.zeros(3), np.array([5, 0, 0]), DeploymentConfig(speed=9))
    assert leg == pytest.approx(2 * np.sqrt(2.5) + 0.5)


@given(readings=READINGS, seed=st.integers(0, 2**16), config=SETTINGS)
def test_all_uavs_in_the_air_leave_each_stop_together_after_whole_seconds(
    readings: list[int], seed: int, config: DeploymentConfig
) -> None:
    schedule = team_schedule(random_tracks(readings, seed), (-30.0, 9.0), 45.0, config)
    waits = schedule.departures - schedule.arrivals
    np.testing.assert_allclose(waits, waits.round(), atol=1e-6)
    for k in range(1, len(schedule.stops)):
        flying = [n for n, number in enumerate(readings) if k < BEFORE + number + AFTER - 1]
        assert not waits[k, [n for n in range(len(readings)) if n not in flying]].any()
        if flying:
            assert waits[k, flying].min() == pytest.approx(5 if k == 1 else 1)
            assert np.ptp(schedule.departures[k, flying]) <= 1 + 1e-6
            # Errors of the rounding do not add up.
            assert schedule.departures[k, flying].max() <= schedule.arrivals[k, flying].max() + (
                5.5 if k == 1 else 1.5
            )


@given(readings=READINGS, seed=st.integers(0, 2**16), config=SETTINGS)
def test_pads_and_transit_altitudes_lie_apart(
    readings: list[int], seed: int, config: DeploymentConfig
) -> None:
    stops = team_stops(random_tracks(readings, seed), (3.0, 4.0), 45.0, config)
    for a, b in itertools.combinations(range(len(readings)), 2):
        assert np.linalg.norm(stops[0, a] - stops[0, b]) >= config.pad_distance - 1e-9
        assert abs(stops[1, a, 2] - stops[1, b, 2]) >= config.separation - 1e-9
    assert (stops[1, :, 2] >= 45 + config.separation - 1e-9).all()


def test_who_reads_less_flies_home_at_once() -> None:
    paths = [
        np.array([(10.0 * n, 5.0 * k, 15.0) for k in range(number)])
        for n, number in ((1, 2), (2, 4))
    ]
    stops = team_stops(paths, (0, 0), 15, DeploymentConfig())
    short, long = stops.transpose(1, 0, 2).tolist()
    assert short[BEFORE : BEFORE + 2] == paths[0].tolist()
    assert short[BEFORE + 2 :] == [[10, 5, 20], [0, 0, 20], *[[0, 0, 0]] * 3]
    assert long[BEFORE : BEFORE + 4] == paths[1].tolist()
    assert long[BEFORE + 4 :] == [[20, 15, 25], [10, 0, 25], [10, 0, 0]]
