"""No UAV flies into a zone or an obstacle, whoever decides."""

from __future__ import annotations

import math
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.rollout import RolloutCollector
from marl_framework.config.errors import ConfigError
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import action_offsets
from marl_framework.mission.obstacles import NUMBERS
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.task import MissionTask
from marl_framework.planners.protocol import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.models import TrueMap
from marl_framework.planners.search.planner import SearchPlanner
from tests.mission.zones import box_zones, feature, touches, write_zones, zone_config

ACTIONS = st.sampled_from([4, 6, 9, 27])


def random_zones(seed: int) -> list[tuple[Any, float, float]]:
    """Up to three polygons, some with a hole, from a floor up to a height or the sky."""
    random = np.random.default_rng(seed)
    zones = []
    for _ in range(random.integers(1, 4)):
        middle, size = random.uniform(0, 30, 2), random.uniform(2, 12)
        shape = shapely.MultiPoint(middle + random.normal(0, size / 2, (6, 2))).convex_hull
        if random.random() < 0.3:
            shape = shape.difference(shapely.Point(middle).buffer(size / 4))
        floor = random.choice([0.0, 6.0, 10.0])
        zones.append((shape, floor, random.choice([floor + 1, floor + 5, math.inf])))
    return [zone for zone in zones if not zone[0].is_empty]


def environment_of(
    zones: list[tuple[Any, float, float]], number: int, **options: Any
) -> MissionEnvironment:
    with tempfile.TemporaryDirectory() as folder:
        features = [
            feature(shape, floor=floor, height=None if height == math.inf else height)
            for shape, floor, height in zones
        ]
        path = write_zones(Path(folder) / "zones.json", *features) if zones else None
        config = zone_config(path, number, **options)
        return MissionEnvironment(config, 4, "cpu")


def planners_of(env: MissionEnvironment) -> list[Planner]:
    view = LatticeView(env.config, env.lattice)
    search = SearchPlanner("search", view, TrueMap(view), BeamSearch(view, 4))
    names = ("random", "information_gain", "coverage", "oracle")
    return [search, *(make_planner(name, env) for name in names)]


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**20 - 1),
    actions=ACTIONS,
    agents=st.sampled_from([1, 3, 5]),
    number=st.sampled_from([0, 2, 6]),
)
def test_no_uav_is_ever_in_a_zone(seed: int, actions: int, agents: int, number: int) -> None:
    zones = random_zones(seed)
    try:
        env = environment_of(zones, number, actions=actions, agents=agents, seed=seed, budget=7)
    except ConfigError:  # too few starts; other tests look at that
        assume(False)
    draws = env.draw_reset()
    boxes = env.obstacles.boxes(draws.boxes, env.reset(draws).positions)
    for planner in planners_of(env):
        state = env.reset(draws)
        path = [env.lattice.metres(state.positions)]
        for _ in range(env.episode_length):
            env.step(state, planner.act(state, env.generator).actions)
            path.append(env.lattice.metres(state.positions))
        flights = torch.stack(path, dim=1).double().numpy()
        for e, n in product(range(4), range(agents)):
            closed = zones + box_zones(boxes[e])
            assert not touches(flights[e, :, n], closed), (planner.name, e, n)


def test_a_training_rollout_keeps_out_too() -> None:
    env = environment_of(random_zones(11), 5, agents=3, budget=9, num_envs=4)
    task = MissionTask(env)
    starts: list[torch.Tensor] = []
    rollout = RolloutCollector(task, len(task.metric_names))
    logits = torch.randn(env.episode_length, 4, 3, 6)
    moments = iter(logits)

    def policy(_: torch.Tensor) -> torch.Tensor:
        starts.append(task.state.positions.clone())
        return next(moments)

    found = rollout.collect(policy, 0.1)
    moves = task.state.moves
    for t, positions in enumerate(starts):
        allowed = env.lattice.allowed(positions, moves)
        assert not (found.masks[t] & ~allowed).any()
        assert found.masks[t].gather(2, found.actions[t].unsqueeze(2)).all()
        for n in range(3):
            expected = policy_probabilities(logits[t][:, n], found.masks[t][:, n], 0.1)
            torch.testing.assert_close(found.probabilities[t][:, n], expected)
    assert (moves.flatten(1) != env.lattice.table().flatten()).any(1).all()
    assert not moves[0].equal(moves[1])  # boxes differ


@settings(max_examples=40)
@given(seed=st.integers(0, 2**20 - 1), actions=ACTIONS)
@example(seed=0, actions=27)
def test_boxes_close_what_shapely_closes(seed: int, actions: int) -> None:
    env = environment_of([], 3, actions=actions, agents=1, seed=seed)
    draws = torch.rand(2, 3, NUMBERS, generator=torch.Generator().manual_seed(seed))
    starts = torch.tensor([[[0, 0, 2]], [[6, 3, 2]]])
    boxes = env.obstacles.boxes(draws, starts)
    closed = env.obstacles.closed(boxes) & env.lattice.table()
    for e in range(2):
        zones = box_zones(boxes[e])
        expected = torch.zeros_like(closed[e])
        if zones:
            twin = environment_of(zones, 0, actions=actions, agents=1)
            assert twin.zones is not None
            expected = twin.zones.closed() & env.lattice.table()
        assert closed[e].equal(expected)


@pytest.mark.parametrize("start", ["random", "corners", "published"])
def test_boxes_leave_every_first_move_open(start: str) -> None:
    env = environment_of([], 16, actions=27, agents=4, missions={"start": start})
    lattice, generator = env.lattice, torch.Generator().manual_seed(4)
    missions = 300
    obstacles = env.obstacles
    starts = lattice.start_positions(torch.rand(missions, 49, generator=generator))
    boxes = obstacles.boxes(torch.rand(missions, 16, NUMBERS, generator=generator), starts)
    moves = lattice.table() & ~obstacles.closed(boxes)
    assert lattice.allowed(starts, moves).equal(lattice.boundary_mask(starts))
    kept = ~boxes[..., 4].isnan()
    assert 0.05 < kept.double().mean() < 0.95  # some are left out, some stay
    sides = (boxes[..., 1] - boxes[..., 0])[kept], (boxes[..., 3] - boxes[..., 2])[kept]
    for side in sides:
        assert 4.9 < side.min() < 7 < 13 < side.max() < 15.1
    assert 9.9 < boxes[..., 4][kept].min() < 11 < 19 < boxes[..., 4][kept].max() < 20.1


def test_a_closed_move_is_closed_both_ways() -> None:
    env = environment_of(random_zones(3), 4, actions=27, agents=2)
    moves = env.reset().moves[0]
    steps = action_offsets(27)
    for at in product(*(range(size) for size in env.lattice.shape)):
        for a, step in enumerate(steps):
            if moves[(*at, a)]:
                goal = tuple(p + s for p, s in zip(at, step, strict=True))
                assert moves[(*goal, steps.index(tuple(-s for s in step)))]


def test_a_zone_is_closed_between_floor_and_height_up_to_its_border() -> None:
    wall = shapely.box(10, 10, 12, 20)
    env = environment_of([(wall, 6.0, 10.0)], 0, actions=6, agents=1)
    moves = env.reset().moves[0]
    up, left, right, down = 0, 1, 4, 5
    assert not moves[2, 2, 1].any()  # on the border, at 10 m
    assert not moves[1, 2, 1, right]
    assert not moves[3, 4, 1, left]  # touches the corner (10, 20)
    assert moves[3, 2, 1, right]
    assert moves[1, 2, 0, right]  # below it
    assert moves[2, 2, 2, left]  # above it
    assert not moves[2, 2, 0, up]
    assert not moves[2, 2, 2, down]
    assert moves[1, 2, 2, down]


def test_a_hole_and_a_second_polygon_count() -> None:
    ring = shapely.box(4, 4, 26, 26).difference(shapely.box(8, 8, 22, 22))
    both = shapely.MultiPolygon([ring, shapely.box(29, 29, 31, 31)])
    env = environment_of([(both, 0.0, math.inf)], 0, actions=4, agents=1)
    free = env.reset().moves[0].any(-1)
    assert free[3, 3].all()  # in the hole
    assert not free[1, 3].any()
    assert not free[6, 6].any()
    assert free[0, 0].all()


def test_without_obstacles_and_zones_nothing_changes() -> None:
    plain, crowded = (environment_of([], number, agents=2) for number in (0, 3))
    ours, theirs = plain.draw_reset(), crowded.draw_reset()
    assert torch.equal(ours.start, theirs.start)
    assert torch.equal(ours.terrain.kind, theirs.terrain.kind)
    assert torch.equal(ours.first.sensor, theirs.first.sensor)  # boxes are drawn last
    assert ours.boxes.shape == (4, 0, NUMBERS)
    state = plain.reset(ours)
    assert state.moves.equal(plain.lattice.table().expand_as(state.moves))
    assert state.moves.stride(0) == 0  # one table for all missions
    assert (state.open_share == 1).all()


def test_missions_that_do_not_start_again_keep_their_boxes() -> None:
    env = environment_of([], 6, agents=1)
    state = env.reset()
    before = state.clone()
    mask = torch.tensor([True, False, False, True])
    env.reset(state=state, mask=mask)
    assert state.moves[1:3].equal(before.moves[1:3])
    assert state.open_share[1:3].equal(before.open_share[1:3])
    assert not state.moves[0].equal(before.moves[0])


def test_random_starts_keep_out_of_zones() -> None:
    half = shapely.box(-1, -1, 16, 31)
    env = environment_of([(half, 0.0, math.inf)], 0, agents=5)
    lattice = env.lattice
    for _ in range(20):
        positions = env.reset().positions
        assert (positions[..., 0] >= 4).all()
        assert all(len(set(row)) == 5 for row in lattice.cells(positions).tolist())


def test_a_deployment_has_no_obstacles() -> None:
    env = MissionEnvironment(zone_config(None, 9), 2, "cpu", "deployment")
    state = env.reset()
    assert state.moves.equal(env.lattice.table().expand_as(state.moves))
