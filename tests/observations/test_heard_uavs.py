"""Planes of the UAVs heard, against footprints drawn on the full map one by one."""

import torch

from marl_framework.kernels.cells import area_pool, lattice_weights
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from tests.small import random_actions, small_config

ATTENTION = {
    "networks": {name: {"type": "attention", "hidden_dim": 8} for name in ("actor", "critic")},
    "observation": {"heard_uavs": True},
}


def test_a_plane_shows_what_a_heard_uav_sees() -> None:
    config = small_config(agents=4, uav={"communication_range": 12}, **ATTENTION)
    env = MissionEnvironment(config, 6, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state = env.reset(env.draw_reset())
    for _ in range(3):
        actions = random_actions(env, state, env.generator)
        env.step(state, actions, env.draw_step())
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
    state = env.reset(env.draw_reset())
    plain = small_config(agents=3)
    expected = ObservationBuilder(plain, env.lattice, env.camera)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    assert torch.equal(builder.actor(state)[:, :, 3:], expected.actor(state))
    actions = torch.zeros(2, 3, dtype=torch.int64)
    assert torch.equal(builder.critic_only(state, actions), expected.critic_only(state, actions))
    assert [c - 3 for c in config.network_sizes.action_channels] == [
        *plain.network_sizes.action_channels
    ]
