"""The table of channels, and what follows from it."""

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from marl_framework.algorithms.batch import Transitions
from marl_framework.config.learning import (
    ACTOR_CHANNELS,
    CRITIC_ONLY_CHANNELS,
    PREDICTED_CHANNELS,
    ObservationConfig,
)
from marl_framework.kernels.cells import (
    area_pool,
    area_weights,
    interval_overlap,
    lattice_weights,
    weighted_entropy,
)
from marl_framework.kernels.maps import ActorPlaces, CriticPlaces
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.channels import CHANNELS, Turns
from marl_framework.observations.symmetry import Symmetries
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import random_actions, small_config

PAGE = Path(__file__).parents[2] / "docs" / "observations.md"
ALL = {name: name not in PREDICTED_CHANNELS for name in CHANNELS}
RANGES = (0.0, 15.0, math.inf)


def test_the_table_has_the_keys_of_the_configuration_in_their_order() -> None:
    assert list(CHANNELS) == [*ACTOR_CHANNELS, *CRITIC_ONLY_CHANNELS]
    assert {*CHANNELS, "heard_uavs", "window"} == set(ObservationConfig.model_fields)
    assert {name for name in CHANNELS if "predicted" in name} == set(PREDICTED_CHANNELS)


def test_kernels_have_the_slots_of_the_table() -> None:
    in_kernel = {name for name, row in CHANNELS.items() if row.in_kernel}
    assert {*ActorPlaces._fields, *CriticPlaces._fields} == in_kernel
    assert [name for name, row in CHANNELS.items() if row.turns is Turns.ACTIONS] == [
        "other_actions",
        "centred_other_actions",
    ]


def test_the_page_has_the_table() -> None:
    rows = []
    for name, row in CHANNELS.items():
        shows = str(row.draw.__doc__).removeprefix("Draw the ").rstrip(".")
        shows += ", with the UAV at the centre" * row.is_centred
        rows.append(f"| `{name}` | {'actor' if name in ACTOR_CHANNELS else 'critic'} | {shows} |")
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")


@settings(max_examples=40)
@given(
    rows=st.integers(2, 130), cols=st.integers(2, 130), x=st.integers(2, 12), y=st.integers(2, 12)
)
def test_area_means_are_those_of_opencv_where_it_shrinks(rows, cols, x, y) -> None:
    x, y = min(x, rows), min(y, cols)
    image = np.random.default_rng(rows * cols).random((rows, cols), dtype=np.float32)
    expected = cv2.resize(image, (y, x), interpolation=cv2.INTER_AREA)
    weights = area_weights(rows, x).float(), area_weights(cols, y).float()
    np.testing.assert_allclose(
        area_pool(torch.from_numpy(image), *weights).numpy(), expected, atol=1e-5
    )


def flown(moves: int = 2, missions: int = 4, **options: Any) -> Iterator[Any]:
    """Yield an environment, its state and maps by channel, after the start and each move."""
    env = MissionEnvironment(small_config(**options), missions, "cpu")
    builder = ObservationBuilder(env.config, env.lattice, env.camera)
    state = env.reset()
    for move in range(moves + 1):
        actions = random_actions(env, state, env.generator)
        if move:
            env.step(state, actions)
        yield env, state, by_name(builder, state, actions)


def by_name(builder: ObservationBuilder, state: MissionState, actions: Tensor) -> dict[str, Tensor]:
    seen = builder.critic(state, actions, builder.actor(state))
    return dict(zip(builder.critic_channels, seen.unbind(2), strict=True))


@pytest.mark.parametrize("dims", [(30.0, 30.0), (30.0, 20.0)])
def test_centred_channels_are_the_others_with_the_uav_at_the_centre(dims) -> None:
    constraints = {"obstacles": {"number": 4}}
    *_, (env, state, maps) = flown(observation=ALL, dims=dims, constraints=constraints)
    x, y, _ = env.lattice.shape
    border = (y // 2, y // 2, x // 2, x // 2)
    for row in (row for row in CHANNELS.values() if row.is_centred and row.name in maps):
        for e, n in product(range(4), range(3)):
            i, j, _ = state.positions[e, n].tolist()
            whole = pad(maps[row.draw.__name__][e, n], border, value=row.beyond)
            assert maps[row.name][e, n].equal(whole[i : i + x, j : j + y]), row.name
    alone = small_config(observation={name: name == "centred_entropy" for name in ACTOR_CHANNELS})
    seen = ObservationBuilder(alone, env.lattice, env.camera).actor(state)
    assert seen[:, :, 0].equal(maps["centred_entropy"])


@pytest.mark.parametrize(
    "off", ["budget", "position", "footprint", "global_entropy", "other_actions"]
)
def test_a_channel_that_is_off_narrows_the_input_and_changes_nothing_else(off: str) -> None:
    ((_, _, whole),) = flown(moves=0)
    ((env, _, narrow),) = flown(moves=0, observation={off: False})
    assert set(whole) - set(narrow) == {off}
    assert len(narrow) == env.config.network_sizes.critic_channels
    for name, channel in narrow.items():
        assert torch.equal(channel, whole[name])


def test_numbers_of_the_mission_and_sectors_are_those_drawn() -> None:
    seen = {"team_size": True, "radio_range": True, "sector": True}
    options: dict[str, Any] = {"uav": {"communication_range": RANGES}, "observation": seen}
    sectors = Sectors(5, (7, 7), "cpu")
    expected: Tensor | None = None
    for _, state, maps in flown(4, 30, agents=(2, 5), budget=(1, 3), **options):
        if expected is None:
            expected = sectors.maps(sectors.deal(state.positions, state.team_size), state.team_size)
        size, reach = maps["team_size"], maps["radio_range"]
        assert (size == (state.team_size / 16).view(-1, 1, 1, 1)).all()
        reaches = (state.communication_range / math.hypot(30, 30)).clamp(max=1)
        assert (reach == reaches.view(-1, 1, 1, 1)).all()
        assert maps["sector"].equal(expected)
    assert not state.active.any()  # UAVs stop, and nothing changes
    assert [len(values.unique()) for values in (size, reach)] == [2, 3]


@pytest.mark.parametrize("sensor", [{}, ASYMMETRIC])
def test_local_entropy_is_that_of_the_mean_likelihood_in_the_square(sensor: dict[str, Any]) -> None:
    *_, (env, state, maps) = flown(3, sensor=sensor)
    likelihood = env.camera.likelihood(state.readings, state.positions)
    footprint = env.camera.footprint(state.positions)
    beyond = 0
    for e, i in product(range(4), range(3)):
        seen = [int(field[e, i]) for field in footprint]
        row0, row1, col0, col1, window_row, window_col, top, left = seen
        side = env.camera.sides[0][state.positions[e, i, 2]]
        square = torch.full((side, side), 0.5)  # of the whole footprint, on the map or not
        square[row0 - top : row1 - top, col0 - left : col1 - left] = likelihood[
            e, i, row0 - window_row : row1 - window_row, col0 - window_col : col1 - window_col
        ]
        beyond += (row1 - row0) * (col1 - col0) < side * side
        cells, width = torch.arange(side).double(), torch.tensor(side / 7).double()
        parts = torch.arange(7).unsqueeze(1) * width
        weights = interval_overlap(cells, cells + 1, parts, width).float()
        expected = weighted_entropy(weights @ square @ weights.T)
        torch.testing.assert_close(maps["local_entropy"][e, i], expected, rtol=0, atol=1e-5)
    assert beyond > 0


ATTENTION = {
    "networks": {name: {"type": "attention", "hidden_dim": 8} for name in ("actor", "critic")},
    "observation": {"heard_uavs": True},
}


def test_a_plane_shows_what_a_heard_uav_sees() -> None:
    config = small_config(agents=4, uav={"communication_range": 12}, **ATTENTION)
    env = MissionEnvironment(config, 6, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state = env.reset()
    for _ in range(3):
        actions = random_actions(env, state, env.generator)
        env.step(state, actions)
    footprint = env.camera.footprint(state.positions)
    weights = lattice_weights(env.camera.shape, builder.shape, "cpu")
    observation = builder.actor(state)
    assert observation.shape[2] == config.network_sizes.actor_channels
    assert 0 < (~state.heard).sum() < state.heard.numel() - state.heard.shape[0] * 4
    for e in range(6):
        for i in range(4):
            for k, j in enumerate([i, *(other for other in range(4) if other != i)]):
                drawn = torch.zeros(env.camera.shape)
                rows = slice(int(footprint.row0[e, j]), int(footprint.row1[e, j]))
                cols = slice(int(footprint.col0[e, j]), int(footprint.col1[e, j]))
                drawn[rows, cols] = float(state.positions[e, j, 2] + 1) / env.lattice.shape[2]
                drawn *= bool(state.heard[e, i, j])
                torch.testing.assert_close(observation[e, i, k], area_pool(drawn, *weights))


def test_the_other_channels_are_as_without_them() -> None:
    config = small_config(agents=3, **ATTENTION)
    env = MissionEnvironment(config, 2, "cpu")
    state = env.reset()
    plain = small_config(agents=3)
    expected = ObservationBuilder(plain, env.lattice, env.camera)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    assert torch.equal(builder.actor(state)[:, :, 3:], expected.actor(state))
    actions = torch.zeros(2, 3, dtype=torch.int64)
    assert torch.equal(builder.critic_only(state, actions), expected.critic_only(state, actions))
    assert [c - 3 for c in config.network_sizes.action_channels] == [
        *plain.network_sizes.action_channels
    ]


@pytest.mark.parametrize("actions", [4, 6, 9, 27])
def test_it_shows_the_share_of_moves_that_are_forbidden(actions: int) -> None:
    obstacles, options = {"obstacles": {"number": 5}}, {"observation": {"no_fly": True}}
    config = small_config(
        actions=actions, agents=2, dims=(30.0, 20.0), constraints=obstacles, **options
    )
    env = MissionEnvironment(config, 3, "cpu")
    state = env.reset()
    maps = ObservationBuilder(env.config, env.lattice, env.camera).actor(state)
    absolute = maps[:, :, env.config.observation.actor_channels.index("no_fly")]
    x, y, z = env.lattice.shape
    table, values = env.lattice.table(), set()
    for e, i, j in product(range(3), range(x), range(y)):
        known = [(k, a) for k in range(z) for a in range(actions) if table[i, j, k, a]]
        closed = sum(not state.moves[e, i, j, k, a] for k, a in known) / len(known)
        values.add(round(closed, 3))
        for n in range(2):
            assert absolute[e, n, i, j].item() == pytest.approx(closed, abs=1e-6)
    assert {0.0} < values  # some are closed, not all


def test_it_turns_as_moves_do() -> None:
    """The moves of all places, turned one by one, close as much as the turned channel shows."""
    obstacles = {"obstacles": {"number": 6}}
    env = MissionEnvironment(small_config(agents=1, constraints=obstacles), 3, "cpu")
    moves, table = env.reset().moves[0, :, :, 1], env.lattice.table()[:, :, 1]
    cells = 49
    share = moves.sum(-1) / table.sum(-1)
    numbers = torch.arange(cells, dtype=torch.float32).view(7, 7)
    batch = Transitions(
        observations=torch.stack((numbers, share)).expand(cells, 2, 7, 7),
        critic_maps=torch.zeros(cells, 5, 7, 7),
        actions=torch.zeros(cells, dtype=torch.int64),
        masks=moves.flatten(0, 1),
        old_probabilities=torch.zeros(cells, 6),
        targets=torch.zeros(cells),
    )
    symmetries = Symmetries(env.config, "cpu")
    assert len(symmetries) == 8
    for which in range(8):
        turned = symmetries.apply(batch, torch.full((cells,), which))
        sources, shown = turned.observations[0]
        there = turned.masks[sources.long()]
        assert not (there & ~table).any()  # nothing leads off the lattice
        torch.testing.assert_close(there.sum(-1) / table.sum(-1), shown)
