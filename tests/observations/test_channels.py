from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.mission.area import area_pool, area_weights
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations import channels
from marl_framework.observations.builder import ObservationBuilder
from tests.small import small_config


@settings(max_examples=40)
@given(
    rows=st.integers(2, 130), cols=st.integers(2, 130), x=st.integers(2, 12), y=st.integers(2, 12)
)
def test_area_pool_equals_opencv_where_it_shrinks(rows, cols, x, y):
    x, y = min(x, rows), min(y, cols)
    image = np.random.default_rng(rows * cols).random((rows, cols), dtype=np.float32)
    expected = cv2.resize(image, (y, x), interpolation=cv2.INTER_AREA)
    pooled = area_pool(
        torch.from_numpy(image), area_weights(rows, x).float(), area_weights(cols, y).float()
    )
    np.testing.assert_allclose(pooled.numpy(), expected, atol=1e-5)


@given(cells=st.integers(1, 60), outputs=st.integers(1, 60))
def test_area_weights_average(cells, outputs):
    weights = area_weights(cells, outputs)
    torch.testing.assert_close(weights.sum(1), torch.ones(outputs, dtype=torch.float64))
    shares = torch.full((cells,), outputs / cells, dtype=torch.float64)
    torch.testing.assert_close(weights.sum(0), shares)


@pytest.mark.parametrize(("x", "y"), [(11, 11), (6, 9), (2, 3)])
def test_centring_copies_values_exactly(x, y):
    field = torch.rand(1, 1, 2, x, y)
    for i in range(x):
        for j in range(y):
            centred = channels.centre_on(field, torch.tensor([[[i, j]]]))
            for r in range(x):
                for c in range(y):
                    u, v = r - x // 2 + i, c - y // 2 + j
                    inside = 0 <= u < x and 0 <= v < y
                    expected = field[..., u, v] if inside else torch.zeros(1, 1, 2)
                    assert torch.equal(centred[..., r, c], expected)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6))
def test_paint_keeps_the_last_one_written(seed, n):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3)
    cells = torch.randint(6, (4, n), generator=generator)
    values = torch.rand(4, n, generator=generator) + 0.1
    order = (
        torch.stack([torch.randperm(n, generator=generator) for _ in range(8)]).view(4, 2, n)
        - (torch.rand(4, 2, n, generator=generator) < 0.3) * 100
    )
    order = order.clamp(min=-1)
    painted = channels.paint(cells, values, order, 0.7, shape)
    for e in range(4):
        for m in range(2):
            expected = torch.full((6,), 0.7)
            for j in order[e, m].argsort().tolist():
                if order[e, m, j] >= 0:
                    expected[cells[e, j]] = values[e, j]
            torch.testing.assert_close(painted[e, m].flatten(), expected)


@pytest.mark.parametrize("dims", [(30.0, 30.0), (20.0, 35.0)])
def test_footprint_maps_equal_full_resolution_drawing(dims):
    config = small_config(agents=5, dims=dims, pixels=(11, 16))
    camera = Camera(config, "cpu")
    generator = torch.Generator().manual_seed(0)
    shape = config.geometry.lattice_shape
    positions = torch.stack(
        [torch.randint(size, (20, 5), generator=generator) for size in shape], dim=-1
    )
    heard = (torch.rand(20, 5, 5, generator=generator) < 0.5) | torch.eye(5, dtype=torch.bool)
    footprint = camera.footprint(positions)
    strips = channels.FootprintStrips(footprint, camera.shape, shape[:2])
    weights = [area_weights(n, m).float() for n, m in zip(camera.shape, shape[:2], strict=True)]
    got, shared = strips.heard_map(heard), strips.global_map()
    for e in range(20):
        drawn = torch.zeros(5, *camera.shape, dtype=torch.bool)
        for j in range(5):
            drawn[
                j,
                footprint.row0[e, j] : footprint.row1[e, j],
                footprint.col0[e, j] : footprint.col1[e, j],
            ] = True
        for i in range(5):
            full = torch.full(camera.shape, 0.5)
            full[drawn[heard[e, i]].any(0)] = 0.0
            full[drawn[i]] = 1.0
            torch.testing.assert_close(got[e, i], area_pool(full, *weights), atol=1e-5, rtol=0)
        full = torch.where(drawn.any(0), 1.0, 0.5)
        torch.testing.assert_close(shared[e], area_pool(full, *weights), atol=1e-5, rtol=0)


def test_constant_maps():
    left = channels.share_left(torch.tensor([0, 7, 14]), 14).unsqueeze(1).expand(-1, 3)
    budget = channels.budget_map(left, (2, 2))
    assert budget[:, 0, 0, 0].tolist() == [1.0, 0.5, 0.0]
    ids = channels.agent_id_map(4, (2, 2), torch.device("cpu"))
    assert ids[:, 1, 1].tolist() == [0.25, 0.5, 0.75, 1.0]


def test_global_positions_and_other_actions():
    cells = torch.tensor([[0, 3, 3]])
    levels = torch.tensor([[1 / 3, 2 / 3, 1.0]])
    assert channels.global_position_map(cells, levels, (2, 2))[
        0
    ].flatten().tolist() == pytest.approx([1 / 3, 0, 0, 1.0])
    others = channels.other_actions_map(cells, torch.tensor([[0, 2, 5]]), 6, (2, 2))[0]
    assert others[0].flatten().tolist() == pytest.approx([0, 0, 0, 1.0])
    assert others[1].flatten().tolist() == pytest.approx([1 / 6, 0, 0, 1.0])
    assert others[2].flatten().tolist() == pytest.approx([1 / 6, 0, 0, 0.5])


@pytest.mark.parametrize(
    "off", ["budget", "position", "footprint", "global_entropy", "other_actions"]
)
def test_a_channel_that_is_off_narrows_the_input_and_changes_nothing_else(off):
    whole, narrow = (small_config(observation=sections) for sections in ({}, {off: False}))
    env = MissionEnvironment(whole, 2, "cpu")
    state = env.reset(env.draw_reset())
    actions = torch.zeros(2, 3, dtype=torch.int64)
    seen = []
    for config in (whole, narrow):
        builder = ObservationBuilder(config, env.lattice, env.camera)
        observation = builder.actor(state)
        critic = builder.critic(state, actions, observation)
        assert observation.shape[2] == len(builder.actor_channels)
        torch.testing.assert_close(critic[:, :, : observation.shape[2]], observation)
        seen.append(dict(zip(builder.critic_channels, critic.unbind(2), strict=True)))
    assert set(seen[0]) - set(seen[1]) == {off}
    for name, channel in seen[1].items():
        assert torch.equal(channel, seen[0][name])


def test_centred_channels_are_the_others_seen_from_the_uav():
    names = ("entropy", "probability", "footprint", "uncertainty")
    shown = {f"centred_{name}": True for name in names}
    config = small_config(observation={"uncertainty": True, **shown})
    env = MissionEnvironment(config, 2, "cpu")
    state = env.reset(env.draw_reset())
    builder = ObservationBuilder(config, env.lattice, env.camera)
    seen = dict(zip(builder.actor_channels, builder.actor(state).unbind(2), strict=True))
    x, y = config.geometry.lattice_shape[:2]
    for e in range(2):
        for n, (ix, iy, _) in enumerate(state.positions[e].tolist()):
            for name in names:
                centre = seen[f"centred_{name}"][e, n, x // 2, y // 2]
                assert centre == seen[name][e, n, ix, iy]
    only = small_config(
        observation={name: name == "centred_entropy" for name in builder.actor_channels}
    )
    alone = ObservationBuilder(only, env.lattice, env.camera).actor(state)
    assert torch.equal(alone[:, :, 0], seen["centred_entropy"])


def test_nobody_sees_what_it_did_not_hear():
    """With no radio, moving UAV 1 changes nothing of what UAV 0 observes."""
    config = small_config(agents=2, uav={"communication_range": 0.0})
    env = MissionEnvironment(config, 1, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state = env.reset(env.draw_reset())
    before = builder.actor(state)
    elsewhere = (state.positions[:, 1, :2] + 2) % 7
    state.positions[:, 1, :2] = elsewhere
    after = builder.actor(state)
    torch.testing.assert_close(before[:, 0], after[:, 0], atol=1e-6, rtol=0)
    assert (before[:, 1] - after[:, 1]).abs().max() > 0.1
