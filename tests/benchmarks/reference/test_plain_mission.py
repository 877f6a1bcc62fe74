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


def test_paper_geometry(paper):
    assert paper.lattice == (11, 11, 3)
    assert paper.cells == (493, 493)
    assert paper.sides == ((56, 56), (114, 114), (170, 170))
    assert paper.noise == (0.01, 0.265, 0.375)


@pytest.mark.parametrize(
    ("place", "rows", "cols"),
    [
        ((0, 0, 0), (0, 28), (0, 28)),
        ((10, 10, 0), (465, 493), (465, 493)),
        ((5, 0, 2), (246 - 85, 246 + 85), (0, 85)),
        ((1, 9, 1), (0, 49 + 57), (444 - 57, 493)),
    ],
)
def test_footprints_are_centred_and_clipped(paper, place, rows, cols):
    seen = ref.footprint(paper, place)
    assert (seen.row0, seen.row1) == rows
    assert (seen.col0, seen.col1) == cols


def test_noise_is_linear_between_table_entries_or_exponential():
    table = {"table": {5.0: 0.1, 15.0: 0.3, 20.0: 0.4}}
    assert geometry_of(model=table).noise == pytest.approx((0.1, 0.2, 0.3))
    exponential = {"type": "exponential", "coeff_a": 0.4, "coeff_b": 0.1}
    noise = geometry_of(model=exponential).noise
    assert noise[1] == pytest.approx(0.4 * (1 - math.exp(-1)))


def test_readings_are_likelihoods_and_flip_at_the_noise_rate(paper):
    truth = np.zeros(paper.cells, dtype=bool)
    reading = ref.measure(paper, truth, (5, 5, 2), np.random.default_rng(0))
    assert reading.shape == (170, 170)
    np.testing.assert_allclose(np.unique(reading), [0.375, 0.625])
    assert (reading > 0.5).mean() == pytest.approx(0.375, abs=0.01)


def test_square_is_half_beyond_the_edge(tiny):
    seen = ref.footprint(tiny, (0, 0, 0))  # centre cell (0, 0), 4 × 4 cells, 2 × 2 on the map
    expected = [
        [0.5, 0.5, 0.5, 0.5],
        [0.5, 0.5, 0.5, 0.5],
        [0.5, 0.5, 0.1, 0.2],
        [0.5, 0.5, 0.3, 0.4],
    ]
    reading = np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)
    np.testing.assert_allclose(ref.square(seen, reading), expected, rtol=1e-6)


def test_range_is_three_dimensional_and_inclusive(paper):
    # 3, 4 and 0 steps of 5 m are 25 m apart; one level more is farther.
    assert ref.near(paper, (0, 0, 0), (3, 4, 0), 25.0)
    assert not ref.near(paper, (0, 0, 0), (3, 4, 0), 24.9)
    assert not ref.near(paper, (0, 0, 0), (3, 4, 1), 25.0)


@pytest.mark.parametrize(
    ("belief", "reading", "prior", "expected"),
    [
        (0.5, 0.99, 0.5, 0.99),
        (0.99, 0.99, 0.5, 0.9801 / 0.9802),
        (0.99, 0.01, 0.5, 0.5),
        (0.25, 0.6, 0.5, 0.15 / 0.45),
        (0.4, 0.6, 0.4, 0.6),  # the prior says nothing, so the reading decides
        (0.5, 0.5, 0.4, 0.3 / 0.5),
        (0.0, 0.6, 0.5, 0.6e-4 / (0.6e-4 + 0.4 * 0.9999)),  # clamped first
        (1.0, 0.6, 0.5, 0.6 * 0.9999 / (0.6 * 0.9999 + 0.4e-4)),
    ],
)
def test_bayes(belief, reading, prior, expected):
    cell = np.array([[belief]], np.float32)
    updated = ref.bayes(cell, np.array([[reading]], np.float32), prior)
    np.testing.assert_allclose(updated, expected, rtol=1e-5)


def test_fusing_leaves_cells_outside_the_footprint(tiny):
    belief = np.full(tiny.cells, 0.25, np.float32)
    reading = np.full((4, 4), 0.6, np.float32)
    ref.fuse(belief, ref.footprint(tiny, (1, 2, 0)), reading, 0.5)
    expected = np.full((8, 6), 0.25)
    expected[0:4, 2:6] = 1 / 3
    np.testing.assert_allclose(belief, expected, rtol=1e-6)


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


def test_entropy_and_weight():
    p = np.array([0.0, 0.25, 0.499, 0.5, 0.501, 0.502, 1.0])
    entropy = ref.binary_entropy(p)
    floor = -1e-4 * math.log2(1e-4) - 0.9999 * math.log2(0.9999)
    assert entropy[3] == 1.0
    assert entropy[1] == pytest.approx(H75)
    assert entropy[[0, 6]] == pytest.approx([floor, floor])
    np.testing.assert_array_equal(ref.weight(p), [0, 0, 0.5, 0.5, 0.5, 1, 1])
    assert ref.entropy(p)[3] == 0.5


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


@pytest.mark.parametrize(
    ("actions", "place", "allowed", "moves"),
    [
        (4, (0, 0, 0), [2, 3], {2: (0, 1, 0)}),
        (4, (4, 3, 2), [0, 1], {0: (3, 3, 2)}),
        (6, (0, 0, 0), [0, 3, 4], {0: (0, 0, 1), 4: (1, 0, 0)}),
        (6, (2, 2, 2), [1, 2, 3, 4, 5], {1: (1, 2, 2), 2: (2, 1, 2), 5: (2, 2, 1)}),
        (9, (0, 1, 1), [3, 5, 6, 7, 8], {3: (0, 0, 1)}),
        (9, (2, 2, 1), [0, 1, 2, 3, 5, 6, 7, 8], {1: (1, 2, 1)}),
        (27, (0, 0, 2), [14, 16, 17, 22, 23, 25, 26], {26: (1, 1, 1)}),
        (27, (2, 2, 1), [*range(13), *range(14, 27)], {0: (1, 1, 2), 26: (3, 3, 0)}),
    ],
)
def test_allowed_moves_and_their_goals(actions, place, allowed, moves):
    geometry = geometry_of(num_actions=actions)
    mask = ref.boundary_mask(geometry, place)
    assert len(mask) == actions
    assert np.flatnonzero(mask).tolist() == allowed
    assert {action: ref.move(geometry, place, action) for action in moves} == moves


def test_collision_masks_apply_at_any_altitude(tiny):
    mask = ref.action_mask(tiny, (2, 2, 1), [(1, 2, 0), (2, 2, 2)])
    assert np.flatnonzero(mask).tolist() == [2, 3, 4]  # neither −x nor up and down


def test_the_last_action_left_stays():
    geometry = geometry_of(num_actions=4)
    taken = [(0, 1, 0), (1, 0, 0)]  # both ways out of the corner
    assert np.flatnonzero(ref.action_mask(geometry, (0, 0, 0), taken)).tolist() == [3]
    assert np.flatnonzero(ref.action_mask(geometry, (0, 0, 0), taken[::-1])).tolist() == [2]
    column = geometry_of(min_altitude=5.0, max_altitude=15.0)
    taken = [(0, 1, 0), (1, 0, 0), (0, 0, 0)]  # up and down lead to the same (x, y)
    assert np.flatnonzero(ref.action_mask(column, (0, 0, 1), taken)).tolist() == [5]


def test_utilities():
    before = np.array([[0.5, 0.5], [0.75, 0.25]], np.float32)
    after = np.array([[0.75, 0.5], [0.75, 0.1]], np.float32)
    absolute, relative = ref.utilities(before, after)
    assert absolute == pytest.approx((1 - H75) / 4)
    assert relative == pytest.approx((1 - H75) / (1 + 0.5 + H75))
    nothing = np.full((2, 2), 0.1, np.float32)
    assert ref.utilities(nothing, nothing) == (0.0, 0.0)


def test_metrics():
    belief = np.array([[0.75, 0.5], [0.9, 0.501]], np.float32)
    truth = np.array([[True, True], [False, True]])
    assert ref.roi_entropy(belief, truth) == pytest.approx((H75 + 2) / 3, abs=1e-5)
    assert ref.f1(belief, truth) == pytest.approx(2 * 1 / (2 + 3))
    nothing = np.zeros((2, 2), dtype=bool)
    assert ref.f1(np.zeros((2, 2), np.float32), nothing) == 0
    assert ref.roi_entropy(belief, nothing) == 0
