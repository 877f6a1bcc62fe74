"""Moves are refused, with a reason, and UAVs stop when their telemetry is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marl_framework.config.flying import FlyingConfig
from marl_framework.flying.messages import Place
from marl_framework.flying.protocols import Status
from marl_framework.flying.safety import Rules, Way, refusal, vehicle_problem

START = (5, 5, 1)
OPEN = {(4, 5, 1), (6, 5, 1), (5, 4, 1), (5, 6, 1)}


PLACES = np.stack(np.meshgrid(*[np.arange(12)] * 3, indexing="ij"), axis=-1)
METRES = 5.0 * PLACES
LOST = Way((9, 5, 1), (8, 5, 1), lost=True)


@pytest.mark.parametrize(
    ("goal", "way", "separation", "word"),
    [
        ((6, 5, 1), Way((9, 9, 1)), 5.0, None),
        ((7, 5, 1), Way((9, 9, 1)), 0.0, "lattice"),
        ((6, 5, 1), Way((7, 5, 1), (6, 5, 1)), 0.0, "UAV 3"),
        ((6, 5, 1), Way((6, 5, 1), (6, 5, 1)), 0.0, "UAV 3"),  # it stays
        ((6, 5, 1), Way((6, 5, 1)), 0.0, None),  # it has not decided, as in the simulator
        ((6, 5, 1), Way((6, 5, 1), lost=True), 0.0, "UAV 3"),
        ((6, 5, 1), Way((6, 5, 1)), 5.0, "0.0 m"),
        ((6, 5, 1), Way((6, 5, 1), (5, 5, 1)), 0.0, None),  # they swap
        ((6, 5, 1), Way((6, 5, 1), (5, 5, 1)), 1.0, "0.0 m"),
        ((6, 5, 1), Way((7, 5, 1), (8, 5, 1)), 5.0, None),
        ((6, 5, 1), Way((7, 5, 1), (8, 5, 1)), 5.1, "5.0 m"),
        ((6, 5, 1), Way((5, 6, 1), (6, 6, 1)), 5.0, None),  # side by side
        ((6, 5, 1), Way((6, 5, 9)), 5.0, "0.0 m"),  # high above, but it may have to return
        ((6, 5, 1), LOST, 5.0, None),  # 10 m away, less a move of 5 m
        ((6, 5, 1), LOST, 5.1, "5.0 m"),
    ],
)
def test_a_move_is_refused(goal: Place, way: Way, separation: float, word: str | None) -> None:
    rules = Rules(METRES, reach=5.0, separation=separation)
    reason = refusal(START, goal, OPEN, {2: way}, rules)
    assert (reason is None) == (word is None)
    assert (word or "") in (reason or "")


HERE = (25.0, 25.0, 5.0)
WAY = np.array([25.0, 25.0, 5.0]), np.array([30.0, 25.0, 5.0])


@pytest.mark.parametrize(
    ("status", "way", "word"),
    [
        (Status(9.0, HERE, 1.0), WAY, None),
        (Status(7.9, HERE, 1.0), WAY, "telemetry"),
        (Status(9.0, None, 1.0), WAY, "position"),
        (Status(9.0, HERE, float("nan")), WAY, "battery"),
        (Status(9.0, (30.0, 27.9, 5.0), 1.0), WAY, None),
        (Status(9.0, (30.0, 28.1, 5.0), 1.0), WAY, "3.1 m"),
        (Status(9.0, (34.0, 25.0, 5.0), 1.0), WAY, "4.0 m"),
        (Status(9.0, (99.0, 25.0, 5.0), 1.0), None, None),
    ],
)
def test_a_vehicle_must_stop(status: Status, way: Any, word: str | None) -> None:
    problem = vehicle_problem(status, 10.0, way, FlyingConfig())
    assert (problem is None) == (word is None)
    assert (word or "") in (problem or "")
