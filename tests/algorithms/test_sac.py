"""Discrete SAC: targets and losses against plain loops and TorchRL; temperature and replay."""

from copy import deepcopy
from dataclasses import replace
from itertools import product
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor

from marl_framework.algorithms.actor_critic import update_target
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.sac import SAC
from tests.algorithms.making import make, rollout_on, same, shuffler, uneven_rollout

GAMMA, LAMBDA, EPSILON, SHARE = 0.9, 0.7, 0.1, 0.4
NAMES = ["sac", "isac"]
ONE_UPDATE: dict[str, Any] = {
    **{"data_passes": 1, "batch_number": 1, "gamma": GAMMA, "lambda": LAMBDA},
    **{"target_entropy": SHARE, "temperature": 0.3},
    **{"actor": {"gradient_norm": 1e9}, "critic": {"gradient_norm": 1e9}},
}


def made(name: str, **options: Any) -> SAC:
    """A team whose target critics differ from its critics."""
    team = make(algorithm=name, **{**ONE_UPDATE, **options})
    assert isinstance(team, SAC)
    with torch.no_grad():
        for p in (*team.actor.parameters(), *team.critic.parameters()):
            p.add_(0.1 * torch.randn(p.shape, generator=shuffler()))
    return team


class PlainSAC:
    """Targets and losses from loops over missions, UAVs, moves and actions."""

    def __init__(self, team: SAC, rollout: Rollout) -> None:
        self.team, self.rollout, self.alpha = team, rollout, float(team.temperature.value)
        moves, missions, uavs = rollout.actions.shape
        self.goals = torch.zeros(moves, missions, uavs)
        losses: list[tuple[Tensor, ...]] = []
        for e, i in product(range(missions), range(uavs)):
            flown = [
                (t, e, i)
                for t in range(moves)
                if rollout.active is None or bool(rollout.active[t, e, i])
            ]
            for at, goal in zip(flown, self._targets(flown), strict=True):
                self.goals[at] = goal
                losses.append(self._losses(at, goal))
        self.critic, self.actor, self.temperature = (
            torch.stack(column).mean() for column in zip(*losses, strict=True)
        )

    def _values(self, critic: torch.nn.Module, at: tuple[int, int, int]) -> list[Tensor]:
        """Values of all actions by each of both critics."""
        seen = self.rollout.observations[at], self.rollout.critic_maps[at]
        return list(critic(torch.cat(seen).unsqueeze(0))[0])

    def _policy(self, at: tuple[int, int, int]) -> list[Tensor]:
        logits = self.team.actor(self.rollout.observations[at].unsqueeze(0))[0]
        mask = self.rollout.masks[at].tolist()
        total = sum(logits[a].exp() for a in range(2) if mask[a])
        zero = torch.zeros(())
        return [
            (1 - EPSILON) * logits[a].exp() / total + EPSILON / sum(mask) if mask[a] else zero
            for a in range(2)
        ]

    def _entropy(self, pi: list[Tensor]) -> Tensor:
        return -torch.stack([p * p.log() for p in pi if p > 0]).sum()

    def _targets(self, flown: list[tuple[int, int, int]]) -> list[Tensor]:
        """Sum the corrections of Retrace(λ), Munos et al. 2016, equation 3."""
        values, taken, traces = [], [], []
        for at in flown:
            both = self._values(self.team.target_critic, at)
            q, pi = [min(both[0][a], both[1][a]) for a in range(2)], self._policy(at)
            values.append(
                sum(p * v for p, v in zip(pi, q, strict=True)) + self.alpha * self._entropy(pi)
            )
            action = int(self.rollout.actions[at])
            taken.append(q[action])
            ratio = float(pi[action].detach()) / float(self.rollout.probabilities[at][action])
            traces.append(LAMBDA * min(1.0, ratio))
        goals = []
        for first in range(len(flown)):
            goal, weight = taken[first], 1.0
            for k in range(first, len(flown)):
                weight *= GAMMA * traces[k] if k > first else 1.0
                after = GAMMA * values[k + 1] if k + 1 < len(flown) else 0.0
                goal = goal + weight * (self.rollout.rewards[flown[k][:2]] + after - taken[k])
            goals.append(goal.detach())
        return goals

    def _losses(self, at: tuple[int, int, int], goal: Tensor) -> tuple[Tensor, ...]:
        both, action = self._values(self.team.critic, at), int(self.rollout.actions[at])
        critic = sum((q[action] - goal) ** 2 for q in both)
        pi, allowed = self._policy(at), int(self.rollout.masks[at].sum())
        actor = -sum(p * min(both[0][a], both[1][a]).detach() for a, p in enumerate(pi))
        entropy = self._entropy(pi)
        surplus = (entropy - SHARE * log(allowed)).detach()
        return critic, actor - self.alpha * entropy, self.team.temperature.log_value * surplus


def uneven(inactive: bool) -> Rollout:
    rollout = uneven_rollout(num_envs=4)
    if not inactive:
        return rollout
    active = torch.ones_like(rollout.actions, dtype=torch.bool)
    active[1, 0], active[:, 2, 1] = False, False
    return replace(rollout, active=active)


@pytest.mark.parametrize("micro_batch", [0, 5])
@pytest.mark.parametrize("inactive", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_targets_and_losses_are_those_of_a_plain_loop(name, inactive, micro_batch, monkeypatch):
    team, rollout = made(name, micro_batch=micro_batch), uneven(inactive)
    plain, found = PlainSAC(team, rollout), team.targets(rollout, EPSILON)
    counted = torch.ones_like(found).bool() if rollout.active is None else rollout.active
    torch.testing.assert_close(found[counted], plain.goals[counted])
    pairs = (
        ("critic_loss", plain.critic, team.critic),
        ("actor_loss", plain.actor, team.actor),
        (None, plain.temperature, team.temperature),
    )
    expected = {
        module: torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        for _, loss, module in pairs
    }
    flat = Transitions.of(rollout, found)
    monkeypatch.setattr(team, "passes", lambda *_: iter([flat]))
    stats = team.update(rollout, EPSILON)
    for key, loss, module in pairs:
        if key is not None:
            torch.testing.assert_close(stats[key].float(), loss.detach(), rtol=1e-4, atol=1e-6)
        for p, gradient in zip(module.parameters(), expected[module], strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore:No target network updater:UserWarning")
def test_losses_are_those_of_torchrl(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchrl")
    from tests.algorithms.torchrl_sac import losses_of_torchrl

    team, rollout = made("sac", **{"lambda": 0.0}), rollout_on(num_envs=4)
    update_target(team.target_critic, team.critic, 1.0)  # TorchRL's targets are copies, too
    expected = losses_of_torchrl(team, rollout, GAMMA, SHARE)
    flat = team.transitions(rollout)
    monkeypatch.setattr(team, "passes", lambda *_: iter([flat]))
    stats = team.update(rollout, 0.0)
    torch.testing.assert_close(stats["critic_loss"], expected["loss_qvalue"])
    torch.testing.assert_close(stats["actor_loss"], expected["loss_actor"])
    gradient = expected["loss_alpha"] / expected["log_alpha"]
    torch.testing.assert_close(team.temperature.log_value.grad, gradient)


@pytest.mark.parametrize(("share", "rises"), [(0.0, False), (1.0, True)])
def test_the_temperature_moves_the_entropy_towards_its_target(share: float, rises: bool) -> None:
    team = make(algorithm="sac", target_entropy=share, temperature=0.1)
    found = [float(team.update(uneven_rollout(), 0.0)["temperature"]) for _ in range(5)]
    assert (found[-1] > 0.1) == rises


def test_missions_flown_before_are_learned_from_again() -> None:
    team = make(algorithm="sac", replay_size=6 * 4, data_passes=4)
    seen: list[Tensor] = []
    loss = team.critic_loss
    team.critic_loss = lambda out, part: seen.append(part.observations) or loss(out, part)
    flown = [rollout_on(num_envs=3, seed=k) for k in range(3)]
    for rollout in flown:
        seen.clear()
        team.update(rollout, 0.1, shuffler())
    drawn = torch.cat(seen)
    assert len(drawn) == 4 * 3 * 4  # passes, missions, transitions of a mission
    for rollout, stored in zip(flown, (False, True, True), strict=True):
        first = rollout.observations.flatten(0, 2)
        assert any(torch.equal(d, o) for d in drawn for o in first) == stored


def test_missions_of_another_length_start_a_new_replay() -> None:
    team, rollout = make(algorithm="sac"), rollout_on(num_envs=3)
    team.update(rollout, 0.1)
    short = Rollout(**{name: field[:1] for name, field in rollout.tensors().items()})
    team.update(short, 0.1)
    assert team.state_dict()["replay"]["written"] == 3


@pytest.mark.parametrize(("replay_size", "missions"), [(4096, 9), (20, 5), (0, 3)])
def test_a_loaded_replay_has_the_size_of_the_configuration(replay_size, missions) -> None:
    team, other = make(algorithm="sac"), make(algorithm="sac", replay_size=replay_size)
    for seed in range(2):
        team.update(rollout_on(seed=seed), 0.1, shuffler())
    other.load_state_dict(team.state_dict())
    other.update(rollout_on(seed=2), 0.1, shuffler())
    stored = other.state_dict()["replay"]["missions"]["rewards"].shape[1]
    assert stored == missions  # of 3 rollouts with 3 missions of 4 transitions


@pytest.mark.parametrize("missions", [1, 3])
@pytest.mark.parametrize("replay_size", [0, 20, 4096])
def test_a_replay_of_any_size_continues_bit_for_bit(replay_size: int, missions: int) -> None:
    team, other = (make(algorithm="sac", replay_size=replay_size, seed=k) for k in (0, 1))
    for seed in range(3):
        team.update(rollout_on(seed=seed), 0.1, shuffler())
    other.load_state_dict(deepcopy(team.state_dict()))
    for each in (team, other):
        each.update(rollout_on(num_envs=missions, seed=4), 0.1, shuffler())
    assert all(same(team.modules[name], other.modules[name]) for name in team.modules)


def test_a_state_without_a_replay_refills_it_and_says_so() -> None:
    team, other = make(algorithm="sac"), make(algorithm="sac", seed=3)
    team.update(uneven_rollout(), 0.1)
    state = {name: value for name, value in team.state_dict().items() if name != "replay"}
    other.load_state_dict(state)
    assert same(team.critic, other.critic)
    assert "replay" not in other.state_dict()
    other.update(uneven_rollout(), 0.1)
    assert other.state_dict()["replay"]["written"] == 3
