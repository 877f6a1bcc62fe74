"""A mission flipped or turned is a mission: what the networks see of it must agree."""

from pathlib import Path
from typing import Any

import pytest
import shapely
import torch
from torch import Tensor

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer
from tests.mission.zones import feature, write_zones
from tests.small import random_actions, small_config
from tests.turned import turned_mission

ALL = {
    name: True
    for name in (
        *(f"centred_{n}" for n in ("entropy", "probability", "footprint", "uncertainty")),
        "uncertainty",
        "global_uncertainty",
    )
}
WINDOWED = {"window": 7, "other_actions": False, "centred_other_actions": True, "places": True}
WORLDS: list[tuple[dict[str, Any], int]] = [
    ({"actions": 6}, 8),
    ({"actions": 4}, 8),
    ({"actions": 9}, 8),
    ({"actions": 27}, 8),
    ({"actions": 6, "dims": (30.0, 40.0)}, 4),
    ({"actions": 27, "pixels": (12, 16)}, 4),
    ({"actions": 6, "observation": {"other_actions": False, "budget": False}}, 8),
    ({"actions": 6, "observation": {"other_actions": False, "centred_other_actions": True}}, 8),
    ({"actions": 9, "dims": (25.0, 25.0), "observation": WINDOWED}, 8),
    ({"actions": 6, "dims": (60.0, 60.0), "observation": WINDOWED}, 8),
]


def _flown(config: Config) -> tuple[MissionEnvironment, MissionState, Tensor]:
    env = MissionEnvironment(config, 5, "cpu")
    state = env.reset()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        actions = random_actions(env, state, generator)
        env.step(state, actions)
    return env, state, random_actions(env, state, generator)


def _transitions(env: MissionEnvironment, state: MissionState, actions: Tensor) -> Transitions:
    builder = ObservationBuilder(env.config, env.lattice, env.camera)
    observations = builder.actor(state).flatten(0, 1)
    critic_maps = builder.critic_only(state, actions).flatten(0, 1)
    masks = env.lattice.boundary_mask(state.positions).flatten(0, 1)
    policy = masks / masks.sum(-1, keepdim=True)
    targets = torch.arange(len(masks)).float()
    return Transitions(
        observations, critic_maps, actions.flatten(), masks, policy, targets, teacher=policy
    )


@pytest.mark.parametrize(("world", "count"), WORLDS)
def test_turned_transitions_are_those_of_the_turned_mission(world, count) -> None:
    config = small_config(**{**world, "observation": {**ALL, **world.get("observation", {})}})
    env, state, actions = _flown(config)
    symmetries = Symmetries(config, "cpu")
    assert len(symmetries) == count
    batch = _transitions(env, state, actions)
    found = []
    for swap in (False, True)[: count // 4]:
        for flip_x in (False, True):
            for flip_y in (False, True):
                turn = (swap, flip_x, flip_y)
                after = turned_mission(env, state, turn)
                goals = env.lattice.move(state.positions, actions)
                moved = state.clone()
                moved.positions = goals
                goals = turned_mission(env, moved, turn).positions
                steps = (goals - after.positions).unsqueeze(2)
                turned_actions = (steps == env.lattice.offsets).all(-1).int().argmax(-1)
                expected = _transitions(env, after, turned_actions)
                matching = [
                    k for k in range(count) if _agree(symmetries, batch, expected, k, config)
                ]
                assert len(matching) == 1
                found += matching
    assert sorted(found) == list(range(count))


def _agree(
    symmetries: Symmetries, batch: Transitions, expected: Transitions, k: int, config: Config
) -> bool:
    got = symmetries.apply(batch, torch.full((len(batch),), k))
    # Footprints end at whole cells, so those of turned missions may lie one cell beside.
    names = config.observation.critic_channels
    shown, wanted = got.critic_inputs, expected.critic_inputs
    exact = torch.tensor(["footprint" not in name and name != "local_entropy" for name in names])
    return (
        torch.equal(got.actions, expected.actions)
        and torch.equal(got.masks, expected.masks)
        and torch.allclose(got.old_probabilities, expected.old_probabilities)
        and torch.allclose(got.teacher, expected.teacher)
        and torch.equal(got.targets, expected.targets)
        and torch.allclose(shown[:, exact], wanted[:, exact], atol=1e-5)
        and bool((shown - wanted).abs().mean() < 0.02)
    )


def test_each_transition_is_turned_by_itself() -> None:
    config = small_config(observation=ALL)
    batch = _transitions(*_flown(config))
    symmetries = Symmetries(config, "cpu")
    which = symmetries.draw(len(batch), torch.Generator().manual_seed(0))
    assert len(which.unique()) > 4
    together = symmetries.apply(batch, which)
    for k in range(8):
        alone = symmetries.apply(batch, torch.full_like(which, k))
        for name, field in alone.tensors().items():
            assert torch.equal(getattr(together, name)[which == k], field[which == k])


@pytest.mark.parametrize("symmetries", [True, False])
def test_each_pass_of_a_training_turns_transitions_anew(symmetries, monkeypatch) -> None:
    learning = {"symmetries": symmetries, "data_passes": 2, "batch_size": 60, "batch_number": 1}
    trainer = Trainer(small_config(observation=ALL, learning=learning), torch.device("cpu"))
    assert isinstance(trainer.algorithm, COMAWrapper)
    batches, critic_loss = [], trainer.algorithm.critic_loss

    def record(outputs: Tensor, batch: Transitions) -> Tensor:
        batches.append(batch)
        return critic_loss(outputs, batch)

    monkeypatch.setattr(trainer.algorithm, "critic_loss", record)
    trainer.make_steps(StageTimer(trainer.device))
    shown = trainer.config.observation.actor_channels.index
    number, probability = shown("agent_id"), shown("probability")
    first, second = (  # UAVs of a mission may share a target, but not a number
        maps[(batch.targets + 100 * maps[:, number, 0, 0]).argsort(), probability]
        for batch in batches
        for maps in (batch.observations,)
    )
    first, second = first.flatten(1), second.flatten(1)
    torch.testing.assert_close(first.sum(1), second.sum(1))
    assert torch.equal(first, second) is not symmetries


def test_two_maps_of_actions_have_no_symmetries() -> None:
    config = small_config(observation={"centred_other_actions": True})
    with pytest.raises(ConfigError, match=r"^observation\.other_actions and centred_o"):
        Symmetries(config, "cpu")


@pytest.mark.parametrize("dims", [(25.0, 30.0), (32.0, 32.0)])
def test_a_lattice_without_a_middle_has_no_symmetries(dims: tuple[float, float]) -> None:
    config = small_config(dims=dims, learning={"symmetries": True})
    with pytest.raises(ConfigError, match=r"learning\.symmetries: requires a lattice with a mid"):
        Trainer(config, torch.device("cpu"))


@pytest.mark.parametrize(("field", "has_sides"), [(None, True), ("random", True), ("file", False)])
def test_a_lattice_without_a_middle_advises_what_can_be_changed(
    field: str | None, has_sides: bool, tmp_path: Path
) -> None:
    if field == "file":
        field = str(write_zones(tmp_path / "f.json", feature(shapely.box(0, 0, 25, 30))))
    config = small_config(dims=(25.0, 30.0), environment={"field": field})
    with pytest.raises(ConfigError, match=r"learning\.symmetries=false") as caught:
        Symmetries(config, "cpu")
    assert ("environment.x_dim" in str(caught.value)) is has_sides
