"""Maps of one size for areas of any size, against plain loops over cells."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.config.learning import PREDICTED_CHANNELS
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import make_builder
from marl_framework.observations.channels import CHANNELS, Extent
from marl_framework.observations.symmetry import Symmetries
from marl_framework.observations.window import Window
from tests.small import random_actions, small_config
from tests.turned import turned, turned_mission

PLAIN: dict[str, Any] = {name: name not in PREDICTED_CHANNELS for name in CHANNELS}
AREAS = [((30.0, 30.0), 5), ((60.0, 25.0), 7), ((20.0, 25.0), 9)]
"""Sides [m] and windows."""
WINDOWED: dict[str, Any] = PLAIN | {"other_actions": False}


def flown(**world: Any) -> tuple[MissionEnvironment, MissionState, Tensor]:
    """Return an environment, its state after three moves, and the next actions."""
    env = MissionEnvironment(small_config(**world), 3, "cpu")
    state = env.reset()
    for _ in range(3):
        env.step(state, random_actions(env, state, env.generator))
    return env, state, random_actions(env, state, env.generator)


def maps_of(
    env: MissionEnvironment, state: MissionState, actions: Tensor, observation: dict[str, Any]
) -> dict[str, Tensor]:
    """Return the maps that other channels of the same missions show, by name."""
    tree = env.config.model_dump(by_alias=True) | {"observation": observation}
    builder = make_builder(env, type(env.config).model_validate(tree))
    seen = builder.critic(state, actions, builder.actor(state))
    return dict(zip(builder.critic_channels, seen.unbind(2), strict=True))


def share(first: float, last: float, start: float, width: float) -> float:
    """Return the share of [start, start + width) that [first, last) covers."""
    return max(0.0, min(last, start + width) - max(first, start)) / width


def averaged(cells: Tensor, sides: tuple[float, float], size: int, beyond: float) -> Tensor:
    """Average a map in the middle of an area of these sides [cells], cell by cell."""
    x, y = cells.shape
    out = torch.zeros(size, size)
    for p, q in product(range(size), repeat=2):
        total = 0.0
        for i, j in product(range(x), range(y)):
            low_x, low_y = (sides[0] - x) / 2 + i, (sides[1] - y) / 2 + j
            rows = share(low_x, low_x + 1, p * sides[0] / size, sides[0] / size)
            cols = share(low_y, low_y + 1, q * sides[1] / size, sides[1] / size)
            total += rows * cols * (float(cells[i, j]) - beyond)
        out[p, q] = total + beyond
    return out


@settings(max_examples=30)
@given(
    x=st.integers(2, 12),
    y=st.integers(2, 12),
    half=st.integers(1, 6),
    beyond=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_far_maps_are_means_over_parts_of_a_square(x, y, half, beyond) -> None:
    size, side = 2 * half + 1, max(x, y)
    cells = torch.rand(2, x, y)
    found = Window(size, (x, y), "cpu").far(cells, beyond)
    for one, expected in zip(found, cells, strict=True):
        torch.testing.assert_close(one, averaged(expected, (side, side), size, beyond))
    if x == y == size:
        assert found.equal(cells)


@settings(max_examples=30)
@given(x=st.integers(2, 12), y=st.integers(2, 12), half=st.integers(1, 6), data=st.data())
def test_near_maps_are_the_positions_around_a_uav(x, y, half, data) -> None:
    size, cells = 2 * half + 1, torch.rand(1, 1, 2, x, y)
    at = data.draw(st.integers(0, x - 1)), data.draw(st.integers(0, y - 1))
    beyond = (0.0, 1.0)
    window = Window(size, (x, y), "cpu")
    found = window.near(cells, torch.tensor(at).view(1, 1, 2), beyond)[0, 0]
    for c, p, q in product(range(2), range(size), range(size)):
        i, j = at[0] + p - half, at[1] + q - half
        inside = 0 <= i < x and 0 <= j < y
        assert found[c, p, q] == (cells[0, 0, c, i, j] if inside else beyond[c])


@pytest.mark.parametrize("uav", [{}, {"delay": (0, 1)}, {"crash_rate": 0.2}])
@pytest.mark.parametrize(("dims", "size"), AREAS)
def test_every_channel_shows_what_it_shows_without_a_window(dims, size, uav) -> None:
    constraints = {"obstacles": {"number": 2}}
    env, state, actions = flown(dims=dims, uav=uav, constraints=constraints, observation=PLAIN)
    whole = maps_of(env, state, actions, PLAIN)
    found = maps_of(env, state, actions, WINDOWED | {"window": size})
    (x, y, z), half = env.lattice.shape, size // 2
    side = max(x, y)
    for (name, maps), e in product(found.items(), range(3)):
        row, n = CHANNELS[name], e
        cells, got, msg = whole[row.draw.__name__][e, n], maps[e, n], f"{name} {e} {n}"
        if name == "position":
            near = {
                tuple(state.positions[e, j, :2].tolist()): (state.positions[e, j, 2] + 1) / (z + 1)
                for j in (n, *range(3))
                if state.heard[e, n, j] and state.active[e, j]
            }
            i, j, _ = state.positions[e, n].tolist()
            for p, q in product(range(size), repeat=2):
                at = i + p - half, j + q - half
                inside = 0 <= at[0] < x and 0 <= at[1] < y
                if not uav:
                    assert got[p, q] == pytest.approx(float(near.get(at, inside)), abs=1e-6), msg
        elif row.is_centred:
            i, j, _ = state.positions[e, n].tolist()
            for p, q in product(range(size), repeat=2):
                a, b = i + p - half, j + q - half
                inside = 0 <= a < x and 0 <= b < y
                assert got[p, q] == (cells[a, b] if inside else row.beyond), msg
        elif row.extent is Extent.VALUE:
            assert (got == cells[0, 0]).all(), msg
        elif row.extent is Extent.FOOTPRINT:
            torch.testing.assert_close(got, averaged(cells, (x, y), size, 0.0), msg=msg)
        elif row.extent is Extent.POINTS:
            sums = averaged(cells, (side, side), size, 0.0) * max(1.0, (side / size) ** 2)
            torch.testing.assert_close(got, sums.clamp(max=1), msg=msg)
        else:
            expected = averaged(cells, (side, side), size, row.beyond)
            torch.testing.assert_close(got, expected, msg=msg)


def test_on_a_lattice_of_its_own_size_a_window_changes_nothing() -> None:
    env, state, actions = flown(dims=(50.0, 50.0), agents=4, observation=PLAIN)
    whole = maps_of(env, state, actions, PLAIN)
    found = maps_of(env, state, actions, WINDOWED | {"window": 11})
    assert found.keys() == whole.keys() - {"other_actions"}
    for name, maps in found.items():
        assert maps.equal(whole[name]), name


def test_an_oblong_area_keeps_its_shape() -> None:
    env, state, actions = flown(dims=(60.0, 30.0), observation=PLAIN)
    area = maps_of(env, state, actions, WINDOWED | {"window": 13})["area"][0, 0]
    assert area[:, 3:10].eq(1).all()
    assert area.sum() == 13 * 7


def test_numbers_of_the_mission_are_relative_to_the_area() -> None:
    uav = {"communication_range": (0.0, 25.0, float("inf"))}
    env, state, actions = flown(dims=(60.0, 30.0), budget=8, agents=(1, 3), uav=uav)
    maps = maps_of(env, state, actions, WINDOWED | {"window": 3})
    x, y, _ = env.lattice.shape
    rows, cols = env.camera.shape
    ranges = set()
    for e, n in product(range(3), range(3)):
        size = int(state.team_size[e])
        p = state.pooled_beliefs[e, n].double().clamp(1e-4, 1 - 1e-4)
        undecided = float(-(p * p.log2() + (1 - p) * (1 - p).log2()).sum())
        moves = size * (8 - 3)
        assert maps["team_moves"][e, n, 0, 0] == pytest.approx(moves / (moves + undecided))
        seen = size * env.camera.sides[0][-1] * env.camera.sides[1][-1] / (rows * cols)
        assert maps["team_density"][e, n, 0, 0] == pytest.approx(seen / (1 + seen))
        reach = float(state.communication_range[e])
        ranges.add(reach)
        value = 1.0 if reach == float("inf") else reach / (reach + 25)
        assert maps["radio_reach"][e, n, 0, 0] == pytest.approx(value)
    assert len(ranges) > 1
    assert moves / (moves + x * y) < maps["team_moves"].max()


@pytest.mark.parametrize(("dims", "size"), AREAS)
def test_turned_maps_are_those_of_the_turned_area(dims, size) -> None:
    """An oblong area turns by a quarter, too: its window is square."""
    seen = {n: on for n, on in WINDOWED.items() if "sector" not in n and "no_fly" not in n}
    seen |= {"sector": False, "centred_sector": False, "no_fly": False, "centred_no_fly": False}
    seen |= {"window": size}
    env, state, _ = flown(dims=dims, observation=seen)
    symmetries = Symmetries(env.config, "cpu")
    assert len(symmetries) == 8
    before = make_builder(env).actor(state).flatten(0, 1)
    after: dict[int, Tensor] = {}
    for swap, flip_x, flip_y in product((False, True), repeat=3):
        sides = dims[::-1] if swap else dims
        other = MissionEnvironment(small_config(dims=sides, observation=seen), 3, "cpu")
        shown = make_builder(other).actor(turned_mission(other, state, (swap, flip_x, flip_y)))
        by_hand = turned(before, (swap, flip_x, flip_y))
        for k in range(8):
            ours = symmetries.maps(before, torch.full((len(before),), k))
            if ours.equal(by_hand):
                after[k] = shown.flatten(0, 1)
        names = env.config.observation.actor_channels
        coarse = ("footprint", "local_entropy")  # footprints end at whole cells
        exact = [k for k, name in enumerate(names) if not name.endswith(coarse)]
        expected = shown.flatten(0, 1)[:, exact]
        torch.testing.assert_close(by_hand[:, exact], expected, rtol=0, atol=1e-5)
    assert sorted(after) == list(range(8))


def test_team_maps_of_a_window() -> None:
    env, state, actions = flown(dims=(60.0, 30.0), observation=WINDOWED | {"window": 5})
    builder = make_builder(env)
    maps = dict(zip(builder.team_channels, builder.team(state).unbind(1), strict=True))
    expected = maps_of(env, state, actions, WINDOWED | {"window": 5})
    for name in maps.keys() - {"budget"}:
        assert maps[name].equal(expected[name][:, 0]), name
    assert not any(name.startswith("centred_") for name in maps)


def test_planes_of_heard_uavs_are_far_maps() -> None:
    networks = {n: {"type": "attention", "hidden_dim": 8} for n in ("actor", "critic")}
    seen: dict[str, Any] = {"heard_uavs": True, "other_actions": False, "window": 5}
    env, state, _ = flown(dims=(60.0, 30.0), networks=networks, observation=seen)
    found = make_builder(env).actor(state)[:, :, :3]
    plain = env.config.model_copy(
        update={"observation": env.config.observation.model_copy(update={"window": None})}
    )
    whole = make_builder(env, plain).heard_uavs(state)
    for e, n, k in product(range(3), repeat=3):
        expected = averaged(whole[e, n, k], (13, 13), 5, 0.0)
        torch.testing.assert_close(found[e, n, k], expected)


def test_nothing_is_read_back() -> None:
    """On the meta device reading a value raises."""
    config = small_config(dims=(60.0, 30.0), observation=WINDOWED | {"window": 5})
    env = MissionEnvironment(config, 3, "meta")
    builder, state = make_builder(env), env.empty_state()
    actions = torch.empty(3, 3, dtype=torch.int64, device="meta")
    maps = builder.critic(state, actions, builder.actor(state))
    assert maps.shape == (3, 3, config.network_sizes.critic_channels, 5, 5)
    out = torch.empty_like(builder.actor(state), dtype=torch.bfloat16)
    assert builder.actor(state, out) is out
