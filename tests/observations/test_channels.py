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

from marl_framework.config.learning import (
    ACTOR_CHANNELS,
    CRITIC_ONLY_CHANNELS,
    PREDICTED_CHANNELS,
    ObservationConfig,
)
from marl_framework.kernels.cells import area_pool, area_weights, interval_overlap, weighted_entropy
from marl_framework.kernels.maps import ActorPlaces, CriticPlaces
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.channels import CHANNELS, Turns
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import random_actions, small_config

PAGE = Path(__file__).parents[2] / "docs" / "observations.md"
ALL = {name: name not in PREDICTED_CHANNELS for name in CHANNELS}
RANGES = (0.0, 15.0, math.inf)


def test_the_table_has_the_keys_of_the_configuration_in_their_order() -> None:
    rows = CHANNELS.values()
    assert [row.name for row in rows if row.seen_by == "actor"] == list(ACTOR_CHANNELS)
    assert [row.name for row in rows if row.seen_by == "critic"] == list(CRITIC_ONLY_CHANNELS)
    assert {*CHANNELS, "heard_uavs"} == set(ObservationConfig.model_fields)
    assert {name for name in CHANNELS if "predicted" in name} == set(PREDICTED_CHANNELS)


def test_kernels_have_the_slots_of_the_table() -> None:
    in_kernel = {name for name, row in CHANNELS.items() if row.in_kernel}
    assert {*ActorPlaces._fields, *CriticPlaces._fields} == in_kernel
    assert [name for name, row in CHANNELS.items() if row.turns is Turns.ACTIONS] == [
        "other_actions"
    ]


def test_the_page_has_the_table() -> None:
    rows = (f"| `{row.name}` | {row.seen_by} | {row.shows} |" for row in CHANNELS.values())
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
    state = env.reset(env.draw_reset())
    for move in range(moves + 1):
        actions = random_actions(env, state, env.generator)
        if move:
            env.step(state, actions, env.draw_step())
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
