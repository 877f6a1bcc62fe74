"""The plain baseline against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.reference import plain_mission as ref
from benchmarks.reference.plain_mission import Geometry
from marl_framework.config.model import Config

H75 = 2 - 0.75 * math.log2(3)  # entropy of 0.75 and 0.25 [bit]


def geometry_of(x_dim=20.0, y_dim=15.0, model=None, **constraints) -> Geometry:
    """With four pixels at 90°, a cell is half as long as the lowest altitude: 2.5 m of 5 m."""
    tree = {
        "environment": {"x_dim": x_dim, "y_dim": y_dim},
        "sensor": {
            "field_of_view": {"angle_x": 90.0, "angle_y": 90.0},
            "pixel": {"number_x": 4, "number_y": 4},
            "model": model or {},
        },
        "experiment": {"constraints": constraints, "missions": {"n_agents": 1}},
    }
    return Geometry.of(Config.model_validate(tree))


@pytest.fixture
def tiny() -> Geometry:
    """A map of 8 × 6 cells under a lattice of 5 × 4 × 3."""
    return geometry_of()


@pytest.fixture
def paper() -> Geometry:
    return Geometry.of(Config())


def test_range_is_three_dimensional_and_inclusive(paper):
    # 3, 4 and 0 steps of 5 m are 25 m apart; one level more is farther.
    assert ref.near(paper, (0, 0, 0), (3, 4, 0), 25.0)
    assert not ref.near(paper, (0, 0, 0), (3, 4, 0), 24.9)
    assert not ref.near(paper, (0, 0, 0), (3, 4, 1), 25.0)


@pytest.mark.parametrize(
    ("source", "shape", "expected"),
    [
        ([[1, 3], [5, 7]], (1, 1), [[4]]),
        ([[1], [2], [3]], (2, 1), [[4 / 3], [8 / 3]]),  # the middle cell is cut in half
        ([[0, 1]], (1, 3), [[0, 0.5, 1]]),  # both axes at least as fine: repeated and cut
        ([[0, 1], [2, 3]], (4, 1), [[0.5], [0.5], [2.5], [2.5]]),
        ([[0, 8, 0, 0, 0, 4]], (2, 2), [[8 / 3, 4 / 3]] * 2),  # one grows, one shrinks
    ],
)
def test_area(source, shape, expected):
    pooled = ref.area(np.array(source, np.float32), shape)
    np.testing.assert_allclose(pooled, expected, rtol=1e-6)


def test_constant_channels(tiny):
    assert (ref.budget(tiny, 0) == 1).all()
    assert (ref.budget(tiny, tiny.budget) == 0).all()
    assert (ref.agent_id(tiny, 1, 4) == 0.5).all()
    assert ref.budget(tiny, 0).shape == (5, 4)


def test_position_is_centred_on_the_agent():
    geometry = geometry_of(x_dim=10.0, y_dim=15.0)  # 3 × 4 × 3, centre (1, 2)
    positions = [(0, 0, 0), (1, 1, 1), (2, 3, 2), (0, 0, 2)]
    # Lattice (0, 0) comes to (1, 2); agent 2 lies beyond the channel's edge.
    own, low, middle, high = 1 / 4, 1 / 4, 2 / 4, 3 / 4
    expected = [[0, 0, 0, 0], [0, 0, own, 1], [0, 0, 1, middle]]
    np.testing.assert_allclose(ref.position(geometry, positions, 0, [0, 1, 2]), expected)
    expected[1][2] = high  # agent 3 is in the same cell and written last
    np.testing.assert_allclose(ref.position(geometry, positions, 0, [0, 1, 3]), expected)
    expected = [[0, high, 1, 1], [0, 1, middle, 1], [0, 1, 1, 1]]
    np.testing.assert_allclose(ref.position(geometry, positions, 1, [0, 1, 3]), expected)
    expected[0][1] = low  # agent 3 is not heard
    np.testing.assert_allclose(ref.position(geometry, positions, 1, [0, 1]), expected)


def test_footprint_channels():
    geometry = geometry_of(x_dim=15.0, y_dim=15.0)  # 4 × 4 lattice, 6 × 6 cells
    own, other = ref.footprint(geometry, (0, 0, 0)), ref.footprint(geometry, (1, 1, 0))
    assert own.window == (slice(0, 2), slice(0, 2))
    assert other.window == (slice(0, 4), slice(0, 4))
    cells = np.full((6, 6), 0.5, np.float32)
    cells[:4, :4] = 0
    cells[:2, :2] = 1
    by_hand = ref.footprints(geometry, [own], [other])
    np.testing.assert_allclose(by_hand, ref.area(cells, (4, 4)), rtol=1e-6)
    # Lattice cells are 1.5 map cells wide: the second is one third own, two thirds other.
    np.testing.assert_allclose(by_hand[0], [1, 1 / 3, 0.5 / 3, 0.5], rtol=1e-6)
    both = ref.footprints(geometry, [own, other], [])
    np.testing.assert_allclose(both[0], [1, 1, 2.5 / 3, 0.5], rtol=1e-6)


def test_local_entropy_of_a_corner():
    geometry = geometry_of(x_dim=5.0, y_dim=5.0)  # 2 × 2 lattice and cells
    reading = np.full((2, 2), 0.75, np.float32)
    channel = ref.local_entropy(geometry, ref.footprint(geometry, (0, 0, 0)), reading)
    np.testing.assert_allclose(channel, [[0.5, 0.5], [0.5, H75]], rtol=1e-6)


def test_critic_channels(tiny):
    positions = [(0, 0, 0), (4, 3, 2), (4, 3, 1)]
    everyone = ref.global_position(tiny, positions)
    assert everyone[0, 0] == pytest.approx(1 / 3)
    assert everyone[4, 3] == pytest.approx(2 / 3)  # the last one written
    assert np.count_nonzero(everyone) == 2
    others = ref.other_actions(tiny, positions, [5, 0, 2], agent=2)
    assert others[0, 0] == 1.0
    assert others[4, 3] == pytest.approx(1 / 6)
    assert np.count_nonzero(ref.other_actions(tiny, positions, [5, 0, 2], agent=0)) == 1


def test_channels_come_in_order():
    geometry = geometry_of(x_dim=5.0, y_dim=5.0)
    belief = np.array([[0.75, 0.25], [0.5, 1.0]], np.float32)
    seen = np.full((2, 2), 0.75, np.float32)
    observation = ref.actor_observation(geometry, 7, 0, [(0, 0, 0)], [0], belief, [seen])
    np.testing.assert_allclose(observation[0, 0], [0.5, 1, 0, H75, 0.5, 0.75, 1], rtol=1e-6)
    extra = ref.critic_extra(geometry, 0, [(0, 0, 0)], [3], belief)
    np.testing.assert_allclose(extra[0, 0], [1 / 3, H75, 0.75, 1, 0], rtol=1e-6)


def test_the_last_action_left_stays():
    geometry = geometry_of(num_actions=4)
    taken = [(0, 1, 0), (1, 0, 0)]  # both ways out of the corner
    assert np.flatnonzero(ref.action_mask(geometry, (0, 0, 0), taken)).tolist() == [3]
    assert np.flatnonzero(ref.action_mask(geometry, (0, 0, 0), taken[::-1])).tolist() == [2]
    column = geometry_of(min_altitude=5.0, max_altitude=15.0)
    taken = [(0, 1, 0), (1, 0, 0), (0, 0, 0)]  # up and down lead to the same (x, y)
    assert np.flatnonzero(ref.action_mask(column, (0, 0, 1), taken)).tolist() == [5]


def test_where_there_is_nothing_to_find_values_are_zero():
    belief, truth = np.full((2, 2), 0.1, np.float32), np.zeros((2, 2), dtype=bool)
    assert ref.utilities(belief, belief) == (0.0, 0.0)
    assert ref.roi_entropy(belief, truth) == ref.f1(np.zeros_like(belief), truth) == 0
