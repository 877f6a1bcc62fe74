"""Planners choose allowed actions only, with the probabilities they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.kernels import make_builder
from marl_framework.planners import (
    CoveragePlanner,
    InformationGainPlanner,
    LearnedPlanner,
    OraclePlanner,
    Planner,
    RandomPlanner,
    registry,
)
from marl_framework.planners.team import find_checkpoint
from tests.small import small_config
from tests.teams import save_team


def make_config(n_agents: int = 3, num_actions: int = 6) -> Config:
    """6 × 4 × 3 positions."""
    return small_config(
        pixels=(8, 8), dims=(25.0, 15.0), agents=n_agents, actions=num_actions, budget=3
    )


def start(config: Config, missions: int) -> tuple[MissionEnvironment, MissionState]:
    env = MissionEnvironment(config, missions, "cpu", "test")
    return env, env.reset(env.draw_reset())


class Scores:
    """A team and an observer at once: the observation holds the wanted logits."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def actor(self, state: MissionState) -> Tensor:
        return self.logits

    def act(self, observation: Tensor) -> Tensor:
        return observation


def planners(env: MissionEnvironment) -> list[Planner]:
    generator = torch.Generator().manual_seed(0)
    shape = (env.num_envs, env.n_agents, env.lattice.num_actions)
    scores = Scores(3 * torch.randn(shape, generator=generator))
    return [
        RandomPlanner(env.lattice),
        LearnedPlanner(scores.act, scores, env.lattice),
        LearnedPlanner(scores.act, scores, env.lattice, greedy=False),
        *classical(env),
    ]


def classical(env: MissionEnvironment) -> list[Planner]:
    """The planners that need neither training nor luck."""
    prior = env.config.mapping.prior
    return [
        InformationGainPlanner(env.lattice, env.camera, prior),
        InformationGainPlanner(env.lattice, env.camera, prior, communication=False),
        CoveragePlanner(env.config, env.lattice),
        OraclePlanner(env.config, env.lattice),
    ]


@pytest.mark.parametrize("num_actions", [4, 6, 9, 27])
def test_only_allowed_actions_are_taken_and_the_state_stays(num_actions: int) -> None:
    env, state = start(make_config(5, num_actions), 64)
    for planner in planners(env):
        for _ in range(env.episode_length):
            before = state.clone()
            actions, masks, *_ = planner.act(state, env.generator)
            assert actions.shape == (64, 5)
            assert masks.gather(2, actions.unsqueeze(2)).all()
            assert not (masks & ~env.lattice.boundary_mask(state.positions)).any()
            for (_, old), (_, new) in zip(before.tensors(), state.tensors(), strict=True):
                assert torch.equal(old, new)
            env.step(state, actions, env.draw_step())
        state = env.reset(env.draw_reset())


def test_random_flight_is_uniform_over_the_allowed_actions() -> None:
    env, state = start(make_config(2), 1)
    missions = 20_000
    state.positions[0] = torch.tensor([[0, 1, 2], [2, 2, 1]])
    many = MissionState(
        **{
            name: value.expand(missions, *value.shape[1:]) if name == "positions" else value
            for name, value in state.tensors()
        }
    )
    actions, masks, *_ = RandomPlanner(env.lattice).act(many, torch.Generator().manual_seed(1))
    counts = actions[:, 0].bincount(minlength=6)
    allowed = masks[0, 0]
    assert (counts[~allowed] == 0).all()
    assert allowed.sum() == 4  # on the edge x = 0 at the top: neither up nor -x
    assert chisquare(counts[allowed].numpy()).pvalue > 1e-3
    # The second UAV avoids the first one's cell, which is too far away here to matter.
    assert chisquare(actions[:, 1].bincount(minlength=6).numpy()).pvalue > 1e-3


def test_random_flight_follows_its_generator() -> None:
    env, state = start(make_config(), 16)
    planner = RandomPlanner(env.lattice)
    first, again, other = (
        planner.act(state, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_greedy_takes_the_best_allowed_action_and_no_randomness() -> None:
    env, state = start(make_config(4), 32)
    generator = torch.Generator().manual_seed(5)
    scores = Scores(torch.randn(32, 4, 6, generator=generator))
    before = generator.get_state()
    actions, masks, *_ = LearnedPlanner(scores.act, scores, env.lattice).act(state, generator)
    assert torch.equal(generator.get_state(), before)
    for e in range(32):
        for n in range(4):
            allowed = [a for a in range(6) if masks[e, n, a]]
            assert actions[e, n] == max(allowed, key=lambda a: scores.logits[e, n, a].item())


def test_sampling_follows_the_softmax_over_the_allowed_actions() -> None:
    missions = 20_000
    env, state = start(make_config(1), 1)
    state.positions[0, 0] = torch.tensor([5, 2, 2])  # neither up nor +x
    many = MissionState(
        **{
            name: value.expand(missions, *value.shape[1:]) if name == "positions" else value
            for name, value in state.tensors()
        }
    )
    logits = torch.tensor([9.0, 0.5, -1.0, 0.0, 9.0, 1.0])
    scores = Scores(logits.expand(missions, 1, 6))
    planner = LearnedPlanner(scores.act, scores, env.lattice, greedy=False)
    actions, masks, *_ = planner.act(many, torch.Generator().manual_seed(3))
    allowed = masks[0, 0]
    assert allowed.tolist() == [False, True, True, True, False, True]
    counts = actions.flatten().bincount(minlength=6)
    expected = missions * logits[allowed].double().softmax(0)
    assert (counts[~allowed] == 0).all()
    assert chisquare(counts[allowed].numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("greedy", [True, False])
def test_the_probabilities_of_a_trained_team_are_those_of_the_allowed_actions(
    greedy: bool,
) -> None:
    env, state = start(make_config(4), 32)
    scores = Scores(torch.randn(32, 4, 6, generator=torch.Generator().manual_seed(2)))
    planner = LearnedPlanner(scores.act, scores, env.lattice, greedy)
    actions, masks, probabilities, compared = planner.act(state, env.generator)
    assert compared is None
    assert probabilities is not None
    assert not masks.all()
    assert (probabilities[~masks] == 0).all()
    assert (probabilities[masks] > 0).all()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(32, 4))
    expected = scores.logits.masked_fill(~masks, -torch.inf).softmax(-1)
    torch.testing.assert_close(probabilities, expected)
    if greedy:
        assert torch.equal(probabilities.argmax(-1), actions)


def test_the_trained_team_flies_by_its_actor() -> None:
    config = make_config()
    env, state = start(config, 4)
    torch.manual_seed(0)
    wrapper = COMAWrapper(config, config.network_sizes, "cpu")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = LearnedPlanner(wrapper.act, builder, env.lattice)
    actions, masks, *_ = planner.act(state, env.generator)
    logits = wrapper.act(builder.actor(state))
    assert torch.equal(actions, logits.masked_fill(~masks, -torch.inf).argmax(-1))
    assert not actions.requires_grad


@pytest.mark.parametrize("num_actions", [4, 6, 9, 27])
def test_missions_flown_together_are_flown_as_alone(num_actions: int) -> None:
    config = small_config(
        pixels=(6, 6), dims=(25.0, 15.0), actions=num_actions, budget=5, uav={"failure_rate": 0.3}
    )
    together, state = start(config, 4)
    alone = MissionEnvironment(config, 1, "cpu", "test")
    states = [state[e : e + 1].clone() for e in range(4)]
    planners = [classical(together), *(classical(alone) for _ in range(4))]
    for number, planner in enumerate(planners[0]):
        flown = state.clone()
        parts = [part.clone() for part in states]
        for _ in range(config.missions.episode_length):
            actions, masks, *_ = planner.act(flown, together.generator)
            for e, part in enumerate(parts):
                own, mask, *_ = planners[e + 1][number].act(part, together.generator)
                assert torch.equal(own, actions[e : e + 1]), planner.name
                assert torch.equal(mask, masks[e : e + 1])
            draws = together.draw_step()
            together.step(flown, actions, draws)
            for e, part in enumerate(parts):
                alone.step(part, actions[e : e + 1], draws[e : e + 1])


def test_large_batches_are_planned_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    env, state = start(make_config(), 7)
    whole = [planner.act(state, env.generator) for planner in classical(env)]
    for planner, decision in zip(classical(env), whole, strict=True):
        if hasattr(planner, "_chunk"):
            monkeypatch.setattr(planner, "_chunk", 3)
        found = planner.act(state, env.generator)
        for got, wanted in zip(found, decision, strict=True):
            assert (got is None) == (wanted is None)
            assert got is None or torch.equal(got, wanted)


def test_planners_fly_on_every_device(device: torch.device) -> None:
    config = make_config()
    env = MissionEnvironment(config, 8, device, "test")
    for planner in classical(env):
        state = env.reset(env.draw_reset())
        for _ in range(env.episode_length):
            actions, masks, *_ = planner.act(state, env.generator)
            assert actions.device.type == device.type
            assert masks.gather(2, actions.unsqueeze(2)).all()
            env.step(state, actions, env.draw_step())


def test_a_planner_that_is_none_is_told_with_those_there_are() -> None:
    env = MissionEnvironment(small_config(), 2, "cpu")
    told = r"^planner nosuch: choose one of learned, .*, or your own as module.Class"
    with pytest.raises(ConfigError, match=told):
        registry.make_planner("nosuch", env)


def test_a_trained_team_sees_through_the_fastest_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = MissionEnvironment(small_config(), 2, "cpu")
    made = []
    monkeypatch.setattr(
        registry, "make_builder", lambda seen: made.append(seen) or make_builder(seen)
    )
    team = find_checkpoint(str(save_team(tmp_path / "team.pt", env.config)))
    planner = registry.make_planner("learned", env, team)
    assert made == [env]
    state = env.reset(env.draw_reset())
    assert planner.act(state, env.generator).actions.shape == (2, 3)
