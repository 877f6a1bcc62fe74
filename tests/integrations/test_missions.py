from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.evaluation.figures import uav_lines
from marl_framework.integrations import gymnasium, pettingzoo, rendering, torchrl
from marl_framework.integrations.missions import LOWEST, Missions
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.prediction import predictor_state
from marl_framework.runs.checkpoint import save_checkpoint
from tests.integrations.core_flight import fly
from tests.small import small_config


def _rule(lattice: Lattice, positions: list[list[int]], wanted: list[int]) -> list[int]:
    flown: list[int] = []
    taken: set[tuple[int, ...]] = set()
    offsets = lattice.offsets.tolist()
    for place, action in zip(positions, wanted, strict=True):
        goals = [[p + d for p, d in zip(place, step, strict=True)] for step in offsets]
        inside = [all(0 <= at < n for at, n in zip(g, lattice.shape, strict=True)) for g in goals]
        on_lattice = [a for a, step in enumerate(offsets) if any(step) and inside[a]]
        allowed = [a for a in on_lattice if tuple(goals[a][:2]) not in taken] or on_lattice[-1:]
        flown.append(action if action in allowed else allowed[-1])
        taken.add(tuple(goals[flown[-1]][:2]))
    return flown


@settings(max_examples=30)
@given(
    st.integers(0, 2**16), st.sampled_from([4, 6, 9, 27]), st.sampled_from([(10.0, 10.0), (30, 30)])
)
def test_simultaneous_conflicts_are_resolved_in_the_cores_order(
    seed: int, actions: int, dims: tuple[float, float]
) -> None:
    missions = Missions(small_config(actions=actions, dims=dims, budget=9), 3, seed=seed)
    missions.reset()
    generator, lattice = torch.Generator().manual_seed(seed), missions.environment.lattice
    for _ in range(3):
        wanted = torch.randint(missions.num_actions, (3, 3), generator=generator)
        goals = lattice.destinations(missions.state.positions)
        inside = ((goals >= 0) & (goals < torch.tensor(lattice.shape))).all(-1)
        inside &= lattice.offsets.any(-1)
        assert torch.equal(missions.masks(), inside)
        flown = missions.resolve_conflicts(wanted)
        at = missions.state.positions.tolist()
        pairs = zip(at, wanted.tolist(), strict=True)
        assert flown.tolist() == [_rule(lattice, *pair) for pair in pairs]
        missions.step(wanted)
        assert (missions.state.positions >= 0).all()
        assert (missions.state.positions < torch.tensor(lattice.shape)).all()


def test_actions_of_the_core_are_flown_unchanged() -> None:
    config = small_config(agents=4)
    flight = fly(config, 5)
    missions = Missions(config, 5)
    for step, (actions, rewards) in enumerate(zip(flight.actions, flight.rewards, strict=True)):
        if step % config.missions.episode_length == 0:
            missions.reset()
        assert torch.equal(missions.observe(), flight.observations[step])
        assert torch.equal(missions.resolve_conflicts(actions), actions)
        assert torch.equal(missions.step(actions).reward, rewards)


def test_team_maps_are_the_critics_without_the_actions() -> None:
    missions = Missions(small_config(), 2)
    missions.reset()
    missions.step(torch.zeros(2, 3, dtype=torch.int64))
    builder, state = missions.builder, missions.state
    critic = builder.critic(state, torch.zeros(2, 3, dtype=torch.int64), missions.observe())
    names = builder.critic_channels
    expected = torch.stack([critic[:, 0, names.index(n)] for n in builder.team_channels], dim=1)
    assert torch.equal(missions.team(), expected)
    assert "other_actions" not in builder.team_channels
    assert missions.team().shape[1:] == missions.team_shape


def test_observations_lie_within_the_bounds() -> None:
    missions = Missions(small_config(budget=1, pixels=(17, 19)), 64)
    seen: list[Tensor] = []
    for _ in range(5):
        missions.reset()
        for _ in range(missions.environment.episode_length):
            missions.step(torch.randint(6, (64, 3)))
            seen += [missions.observe().flatten(), missions.team().flatten()]
    values = torch.cat(seen)
    assert values.min() == LOWEST  # after the last move of a budget of one
    assert 0.99 < values.max() <= missions.highest


def test_predictions_lie_within_the_bounds(tmp_path: Path) -> None:
    network = MapPredictor(4)
    *_, bias = network.parameters()
    torch.nn.init.constant_(bias, 20.0)  # predicts that all entropy is of interest
    save_checkpoint(tmp_path / "p.pt", predictor_state(network, 4))
    config = small_config(
        pixels=(17, 19),
        observation={"predicted": True, "global_predicted": True},
        networks={"predictor": str(tmp_path / "p.pt")},
    )
    missions = Missions(config, 2)
    missions.reset()
    for maps in (missions.observe(), missions.team()):
        assert 1.1 < maps.max() <= missions.highest


def test_seeds_restart_the_stream_modulo_the_cores_range() -> None:
    missions, seen = Missions(small_config(), 2, seed=5), []
    for seed in (None, None, 5 + 7 * MAX_SEED):
        if seed is not None:
            missions.seed(seed)
        missions.reset()
        seen.append(missions.observe().clone())
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])


def test_bad_input_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        Missions(small_config(), 1).observe()
    with pytest.raises(ValueError, match=r"^num_envs 0"):
        Missions(small_config(), 0)
    assert Missions("params_test.yaml", 1).environment.n_agents > 0
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        Missions("missing.yaml", 1)


WRAPPERS = {
    "missions": partial(Missions, num_envs=1),
    "torchrl": partial(torchrl.MissionEnv, num_envs=1),
    "gymnasium": gymnasium.MissionEnv,
    "vector": gymnasium.MissionVectorEnv,
    "pettingzoo": pettingzoo.MissionParallelEnv,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", [4, None, "tpu:x", "cuda:99"])
def test_a_bad_device_is_named(wrapper: str, name: Any) -> None:
    with pytest.raises(ConfigError, match=f"^device: .*{name}"):
        WRAPPERS[wrapper](small_config(), device=name)


# --- rendering ---------------------------------------------------------------------------------


def test_an_image_shows_the_mission_with_its_index() -> None:
    missions = Missions(small_config(), 2)
    missions.reset()
    first, second, again = (rendering.frame(missions, e) for e in (0, 1, 0))
    assert first.dtype == np.uint8
    assert first.shape == second.shape == (380, 720, 3)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)


def test_an_image_shows_where_a_uav_has_stopped() -> None:
    missions = Missions(small_config(agents=(2, 3)), 1)
    missions.reset()
    missions.state.readings[0, 1] = 0  # as after its last move
    missions.state.team_size.fill_(2)
    image = rendering.frame(missions, 0)
    colours = [np.array(to_rgb(colour)) * 255 for colour, _ in uav_lines(3)]
    shown = [bool((image == colour).all(-1).any()) for colour in colours]
    assert shown == [True, True, False]


@pytest.mark.parametrize("mode", ["ansi", "human"])  # tests have no display
def test_render_modes_are_checked(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"^render_mode '{mode}'"):
        rendering.Viewer(mode)


def test_a_window_shows_images_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "pause", lambda _: None)
    window = rendering.Viewer(None)
    window.close()
    for value in (0, 200):
        window.show(np.full((40, 60, 3), value, np.uint8))
        pyplot.gcf().canvas.draw()
        assert (np.asarray(pyplot.gcf().canvas.buffer_rgba())[..., :3] == value).all()
    window.close()
    assert pyplot.get_fignums() == []
