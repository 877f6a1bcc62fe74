"""Planners choose allowed actions only, with the probabilities they promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners import (
    CoveragePlanner,
    InformationGainPlanner,
    LearnedPlanner,
    OraclePlanner,
    Planner,
    RandomPlanner,
)
from marl_framework.planners.registry import make_planner
from tests.small import small_config
from tests.soaking import in_soak

MISSIONS = 20_000


def make_config(n_agents: int = 3, num_actions: int = 6) -> Config:
    return small_config(
        pixels=(8, 8), dims=(25.0, 15.0), agents=n_agents, actions=num_actions, budget=3
    )


def start(config: Config, missions: int) -> tuple[MissionEnvironment, MissionState]:
    env = MissionEnvironment(config, missions, "cpu", "test")
    return env, env.reset()


def many(*positions: list[int]) -> tuple[MissionEnvironment, MissionState]:
    """One mission, its UAVs at some positions, as a batch of many."""
    env, state = start(make_config(len(positions)), 1)
    state.positions[0] = torch.tensor(positions)
    tensors = {
        name: value.expand(MISSIONS, *value.shape[1:]) if name == "positions" else value
        for name, value in state.tensors()
    }
    return env, MissionState(**tensors)


class Scores:
    """A team and an observer at once: the observation holds the wanted logits."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def actor(self, state: MissionState) -> Tensor:
        return self.logits

    def planner(self, env: MissionEnvironment, greedy: bool = True) -> LearnedPlanner:
        return LearnedPlanner(lambda observation: observation, self, env.lattice, greedy)


def classical(env: MissionEnvironment) -> list[Planner]:
    return [
        InformationGainPlanner(env.lattice, env.camera),
        InformationGainPlanner(env.lattice, env.camera, version=env.fusion.version),
        InformationGainPlanner(env.lattice, env.camera, communication=False),
        CoveragePlanner(env.config, env.lattice),
        OraclePlanner(env.config, env.lattice),
    ]


@pytest.mark.parametrize("num_actions", [4, 6, 9, 27])
def test_only_allowed_actions_are_taken_and_the_state_stays(
    num_actions: int, device: torch.device
) -> None:
    env = MissionEnvironment(make_config(5, num_actions), 64, device, "test")
    state = env.reset()
    scores = Scores(torch.randn(64, 5, num_actions, device=device))
    learned = [scores.planner(env, greedy) for greedy in (True, False)]
    for planner in (RandomPlanner(env.lattice), *learned, *classical(env)):
        for _ in range(env.episode_length):
            before = state.clone()
            actions, masks, *_ = planner.act(state, env.generator)
            assert actions.shape == (64, 5)
            assert masks.gather(2, actions.unsqueeze(2)).all()
            assert not (masks & ~env.lattice.boundary_mask(state.positions)).any()
            for (_, old), (_, new) in zip(before.tensors(), state.tensors(), strict=True):
                assert torch.equal(old, new)
            env.step(state, actions)
        state = env.reset()


def test_random_flight_is_uniform_over_the_allowed_actions_and_follows_its_generator() -> None:
    env, state = many([0, 1, 2], [2, 2, 1])
    planner = RandomPlanner(env.lattice)
    (actions, masks, *_), (again, *_), (other, *_) = (
        planner.act(state, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    counts = actions[:, 0].bincount(minlength=6)
    allowed = masks[0, 0]
    assert (counts[~allowed] == 0).all()
    assert allowed.sum() == 4  # on the edge x = 0 at the top: neither up nor -x
    assert chisquare(counts[allowed].numpy()).pvalue > 1e-3
    # The second UAV avoids the first one's cell, which is too far away here to matter.
    assert chisquare(actions[:, 1].bincount(minlength=6).numpy()).pvalue > 1e-3
    assert torch.equal(actions, again)
    assert not torch.equal(actions, other)


def test_sampling_follows_the_softmax_over_the_allowed_actions() -> None:
    env, state = many([5, 2, 2])  # neither up nor +x
    logits = torch.tensor([9.0, 0.5, -1.0, 0.0, 9.0, 1.0])
    planner = Scores(logits.expand(MISSIONS, 1, 6)).planner(env, greedy=False)
    actions, masks, *_ = planner.act(state, torch.Generator().manual_seed(3))
    allowed = masks[0, 0]
    assert allowed.tolist() == [False, True, True, True, False, True]
    counts = actions.flatten().bincount(minlength=6)
    expected = MISSIONS * logits[allowed].double().softmax(0)
    assert (counts[~allowed] == 0).all()
    assert chisquare(counts[allowed].numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("greedy", [True, False])
def test_the_probabilities_of_a_trained_team_are_those_of_the_allowed_actions(greedy: bool) -> None:
    env, state = start(make_config(4), 32)
    generator = torch.Generator().manual_seed(2)
    scores = Scores(torch.randn(32, 4, 6, generator=generator))
    before = generator.get_state()
    decision = scores.planner(env, greedy).act(state, generator)
    assert decision.scores is None
    assert not decision.masks.all()
    expected = scores.logits.masked_fill(~decision.masks, -torch.inf).softmax(-1)
    torch.testing.assert_close(decision.probabilities, expected)
    assert torch.equal(decision.probabilities.argmax(-1), decision.actions) == greedy
    assert torch.equal(generator.get_state(), before) == greedy


@pytest.mark.parametrize("num_actions", [4, 6, *in_soak(9, 27)])
def test_missions_flown_together_are_flown_as_alone(num_actions: int) -> None:
    config = small_config(
        pixels=(6, 6), dims=(25.0, 15.0), actions=num_actions, budget=5, uav={"failure_rate": 0.3}
    )
    together, state = start(config, 4)
    alone = MissionEnvironment(config, 1, "cpu", "test")
    for number in range(len(classical(together))):
        planner, *others = (classical(env)[number] for env in (together, *[alone] * 4))
        flown, parts = state.clone(), [state[e : e + 1].clone() for e in range(4)]
        for _ in range(config.missions.episode_length):
            actions, masks, *_ = planner.act(flown, together.generator)
            draws = together.draw_step()
            together.step(flown, actions, draws)
            for e, part in enumerate(parts):
                own, mask, *_ = others[e].act(part, alone.generator)
                assert torch.equal(own[0], actions[e]), planner.name
                assert torch.equal(mask[0], masks[e])
                alone.step(part, own, draws[e : e + 1])


def test_large_batches_are_planned_in_chunks() -> None:
    env, state = start(make_config(), 7)
    for planner, other in zip(classical(env), classical(env), strict=True):
        other.chunk = 3
        found, wanted = (each.act(state, env.generator) for each in (other, planner))
        assert torch.equal(found.actions, wanted.actions)
        assert torch.equal(found.masks, wanted.masks)
        assert found.scores is None or torch.equal(found.scores, wanted.scores)


@pytest.mark.parametrize(
    ("name", "checkpoint", "named"),
    [
        ("nosuch", None, "nosuch"),
        ("learned", None, "^checkpoint None.*find_checkpoint"),
        ("learned", "runs/x", "^checkpoint 'runs/x'.*find_checkpoint"),
    ],
)
def test_a_planner_that_cannot_be_made_is_named(name: str, checkpoint: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_planner(name, MissionEnvironment(small_config(), 2, "cpu"), checkpoint)
