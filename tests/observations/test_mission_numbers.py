"""Channels of what UAVs know of the mission: how many fly, how far they hear, and their sectors."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch.nn.functional import pad

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from marl_framework.observations import kernels
from marl_framework.observations.builder import ObservationBuilder
from tests.small import random_actions, small_config

SEEN = {"team_size": True, "radio_range": True}
RANGES = (0.0, 15.0, math.inf)


def test_they_show_what_each_mission_has_drawn() -> None:
    config = small_config(
        agents=(2, 5), budget=(1, 3), uav={"communication_range": RANGES}, observation=SEEN
    )
    env = MissionEnvironment(config, 30, "cpu")
    state = env.reset(env.draw_reset())
    builder = ObservationBuilder(config, env.lattice, env.camera)
    places = [builder.actor_channels.index(name) for name in SEEN]
    sizes, reaches = state.active.sum(1) / 16, state.communication_range / math.hypot(30, 30)
    generator = torch.Generator().manual_seed(1)
    for _ in range(env.episode_length + 1):  # UAVs stop, and the team is still as large
        size, reach = builder.actor(state)[:, :, places].unbind(2)
        assert (size == sizes.view(-1, 1, 1, 1)).all()
        assert (reach == reaches.clamp(max=1).view(-1, 1, 1, 1)).all()
        env.step(state, random_actions(env, state, generator), env.draw_step())
    assert not state.active.any()
    assert [len(values.unique()) for values in (size, reach)] == [2, 3]


def test_each_uav_sees_its_sector() -> None:
    seen = {"sector": True, "centred_sector": True}
    env = MissionEnvironment(small_config(agents=(2, 5), observation=seen), 6, "cpu")
    state = env.reset(env.draw_reset())
    sectors = Sectors(5, (7, 7), "cpu")
    maps = sectors.maps(sectors.deal(state.positions, state.team_size), state.team_size)
    builder = ObservationBuilder(env.config, env.lattice, env.camera)
    place = builder.actor_channels.index("sector")
    assert builder.actor_channels[-1] == "centred_sector"
    env.step(state, random_actions(env, state, env.generator), env.draw_step())
    observation = builder.actor(state)
    for e, i in product(range(6), range(5)):
        assert torch.equal(observation[e, i, place], maps[e, i])
        x, y, _ = state.positions[e, i].tolist()
        centred = pad(maps[e, i], (3, 3, 3, 3))[x : x + 7, y : y + 7]
        assert torch.equal(observation[e, i, -1], centred)


@pytest.mark.parametrize("name", [*SEEN, "sector", "uncertainty"])
def test_plain_operators_draw_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(kernels, "uses_kernels", lambda *_: True)
    env = MissionEnvironment(small_config(observation={name: True}), 2, "cpu")
    builder = kernels.make_builder(env)
    assert isinstance(builder, kernels.TritonBuilder)
    asked_for = builder._known(builder.actor_channels).split()
    assert len(asked_for) == len(builder.actor_channels)
    assert (name in asked_for) == (name == "uncertainty")
