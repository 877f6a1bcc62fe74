"""Moves are refused, with a reason, that leave the open lattice or come close to another UAV."""

from __future__ import annotations

import numpy as np
import pytest

from marl_framework.flying.messages import Place
from marl_framework.flying.safety import Point, Way, refusal

START = (5, 5, 1)
OPEN = {(4, 5, 1), (6, 5, 1), (5, 4, 1), (5, 6, 1)}


def metres(place: Place) -> Point:
    return 5.0 * np.array(place)


@pytest.mark.parametrize(
    ("goal", "way", "separation", "word"),
    [
        ((6, 5, 1), Way((9, 9, 1)), 5.0, None),
        ((7, 5, 1), Way((9, 9, 1)), 0.0, "lattice"),
        ((6, 5, 1), Way((7, 5, 1), (6, 5, 1)), 0.0, "UAV 3"),
        ((6, 5, 1), Way((6, 5, 1), (6, 5, 1)), 0.0, "UAV 3"),  # it stays
        ((6, 5, 1), Way((6, 5, 1)), 0.0, None),  # it has not decided, as in the simulator
        ((6, 5, 1), Way((6, 5, 1)), 5.0, "0.0 m"),
        ((6, 5, 1), Way((6, 5, 1), (5, 5, 1)), 0.0, None),  # they swap
        ((6, 5, 1), Way((6, 5, 1), (5, 5, 1)), 1.0, "0.0 m"),
        ((6, 5, 1), Way((7, 5, 1), (8, 5, 1)), 5.0, None),
        ((6, 5, 1), Way((7, 5, 1), (8, 5, 1)), 5.1, "5.0 m"),
        ((6, 5, 1), Way((5, 6, 1), (6, 6, 1)), 5.0, None),  # side by side
        ((6, 5, 1), Way((6, 4, 2), (6, 6, 2)), 6.0, "5.0 m"),  # it flies across, above
    ],
)
def test_a_move_is_refused(goal: Place, way: Way, separation: float, word: str | None) -> None:
    reason = refusal(START, goal, OPEN, {2: way}, metres, separation)
    assert (reason is None) == (word is None)
    assert (word or "") in (reason or "")
