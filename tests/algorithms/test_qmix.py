"""QMIX: mixing, targets and losses against plain loops and TorchRL; joint moves stay together."""

from collections import Counter
from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.qmix import QMIX, WIDTH, mix
from marl_framework.algorithms.rollout import Rollout
from tests.algorithms.making import make, parameters, rollout_on, same, shuffler, uneven_rollout

GAMMA, LAMBDA, EPSILON, TEMPERATURE = 0.9, 0.7, 0.1, 0.3
OF_UAVS = ("observations", "critic_maps", "actions", "masks", "probabilities")
ONE_UPDATE: dict[str, Any] = {
    **{"data_passes": 1, "batch_number": 1, "gamma": GAMMA, "lambda": LAMBDA},
    **{"temperature": TEMPERATURE, "normalize_advantages": False},
    **{"actor": {"gradient_norm": 1e9}, "critic": {"gradient_norm": 1e9}},
}


def made(**options: Any) -> QMIX:
    """A team whose target networks differ from its networks."""
    team = make(algorithm="qmix", **{**ONE_UPDATE, **options})
    assert isinstance(team, QMIX)
    with torch.no_grad():
        for p in (*team.actor.parameters(), *team.critic.parameters()):
            p.add_(0.3 * torch.randn(p.shape, generator=shuffler()))
    return team


class PlainQMIX:
    """Targets and loss from loops over missions, moves, UAVs and hidden units."""

    def __init__(self, team: QMIX, rollout: Rollout) -> None:
        self.team, self.rollout = team, rollout
        moves, missions, uavs = rollout.actions.shape
        self.goals = torch.zeros(moves, missions, uavs)
        losses: list[Tensor] = []
        for e in range(missions):
            steps = [(t, e, self._flying(t, e)) for t in range(moves) if self._flying(t, e)]
            for (t, _, flying), goal in zip(steps, self._targets(steps), strict=True):
                for i in flying:
                    self.goals[t, e, i] = goal
                actions = [int(rollout.actions[t, e, i]) for i in flying]
                total = self._total(team.actor, team.critic, t, e, flying, actions)
                losses += [(total - goal) ** 2] * len(flying)  # each UAV's move counts
        self.loss = torch.stack(losses).mean()

    def _flying(self, t: int, e: int) -> list[int]:
        rollout, uavs = self.rollout, range(self.rollout.actions.shape[2])
        return [i for i in uavs if rollout.active is None or bool(rollout.active[t, e, i])]

    def _logits(self, actor: nn.Module, t: int, e: int, i: int) -> Tensor:
        logits: Tensor = actor(self.rollout.observations[t, e, i].unsqueeze(0))[0]
        return logits

    def _total(
        self, actor: nn.Module, critic: nn.Module, t: int, e: int, flying: list[int], actions: Any
    ) -> Tensor:
        values, outputs = [], []
        for i, action in zip(flying, actions, strict=True):
            values.append(TEMPERATURE * self._logits(actor, t, e, i)[action])
            seen = self.rollout.observations[t, e, i], self.rollout.critic_maps[t, e, i]
            outputs.append(critic(torch.cat(seen).unsqueeze(0))[0])
        number = len(flying)
        total = sum((out[3 * WIDTH] for out in outputs), torch.zeros(())) / number
        for k in range(WIDTH):
            hidden = sum((out[WIDTH + k] for out in outputs), torch.zeros(())) / number
            for value, out in zip(values, outputs, strict=True):
                hidden = hidden + out[k].abs() * value
            hidden = hidden if hidden > 0 else hidden.exp() - 1
            total = total + sum(out[2 * WIDTH + k].abs() for out in outputs) / number * hidden
        return total

    def _targets(self, steps: list[tuple[int, int, list[int]]]) -> list[Tensor]:
        """Sum discounted rewards and values; the weights of all horizons are written out."""
        values, team = [], self.team
        for t, e, flying in steps:
            best = []
            for i in flying:
                logits = self._logits(team.actor, t, e, i).tolist()
                allowed = [a for a in range(2) if self.rollout.masks[t, e, i, a]]
                best.append(max(allowed, key=lambda a, logits=logits: logits[a]))
            total = self._total(team.target_actor, team.target_critic, t, e, flying, best)
            values.append(total.detach())
        goals = []
        for first in range(len(steps)):
            goal, weight = torch.zeros(()), 1.0
            for k in range(first, len(steps)):
                goal = goal + weight * self.rollout.rewards[steps[k][:2]]
                if k + 1 < len(steps):
                    goal = goal + weight * GAMMA * (1 - LAMBDA) * values[k + 1]
                weight *= GAMMA * LAMBDA
            goals.append(goal)
        return goals


def three_uavs(inactive: bool) -> Rollout:
    """Random missions of three UAVs; some stop early, and one mission ends for all."""
    first, second = uneven_rollout(num_envs=4), rollout_on(num_envs=4, seed=5)
    more = {name: getattr(second, name)[:, :, :1] for name in OF_UAVS}
    together = {name: torch.cat((getattr(first, name), more[name]), dim=2) for name in OF_UAVS}
    rollout = replace(first, **together)
    if not inactive:
        return rollout
    active = torch.ones_like(rollout.actions, dtype=torch.bool)
    active[1, 0], active[1, 1, 2], active[:, 2, 1], active[1, 3, :2] = False, False, False, False
    return replace(rollout, active=active)


@pytest.mark.parametrize("micro_batch", [0, 7])
@pytest.mark.parametrize("inactive", [False, True])
def test_targets_and_gradients_are_those_of_one_loss_in_a_plain_loop(
    inactive, micro_batch, monkeypatch
) -> None:
    team, rollout = made(micro_batch=micro_batch), three_uavs(inactive)
    plain, found = PlainQMIX(team, rollout), team.targets(rollout, EPSILON)
    counted = torch.ones_like(found).bool() if rollout.active is None else rollout.active
    torch.testing.assert_close(found[counted], plain.goals[counted], rtol=1e-4, atol=1e-6)
    modules = team.actor, team.critic
    expected = [
        torch.autograd.grad(plain.loss, list(module.parameters()), retain_graph=True)
        for module in modules
    ]
    flat = team.transitions(rollout)
    monkeypatch.setattr(team, "passes", lambda *_: iter([flat]))
    stats = team.update(rollout, EPSILON)
    for name in ("critic_loss", "actor_loss"):
        torch.testing.assert_close(stats[name].float(), plain.loss.detach(), rtol=1e-4, atol=1e-6)
    for module, gradients in zip(modules, expected, strict=True):
        assert any(gradient.abs().max() > 1e-3 for gradient in gradients)
        for p, gradient in zip(module.parameters(), gradients, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore:No target network updater:UserWarning")
def test_the_loss_is_that_of_torchrl(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchrl")
    from tests.algorithms.torchrl_qmix import loss_of_torchrl

    team, rollout = made(**{"lambda": 0.0}), rollout_on(num_envs=4)
    team.update_targets()  # TorchRL's targets are copies, too
    expected = loss_of_torchrl(team, rollout, GAMMA)
    flat = team.transitions(rollout)
    monkeypatch.setattr(team, "passes", lambda *_: iter([flat]))
    stats = team.update(rollout, 0.0)
    for name in ("critic_loss", "actor_loss"):
        torch.testing.assert_close(stats[name], expected)


def test_a_mixture_of_two_uavs_is_the_papers_formula() -> None:
    outputs = torch.zeros(2, 3 * WIDTH + 1)
    outputs[0, 0], outputs[1, 0] = 2.0, -3.0  # w1
    outputs[0, WIDTH], outputs[1, WIDTH] = 1.0, 3.0  # b1
    outputs[0, 2 * WIDTH], outputs[1, 2 * WIDTH] = -4.0, 2.0  # w2
    outputs[:, -1] = torch.tensor([5.0, 6.0])  # v
    for values, hidden in (([0.5, 1.0], 1 + 3 + 2), ([-2.0, -1.0], exp(-4 - 3 + 2) - 1)):
        found = mix(torch.tensor(values), outputs, torch.ones(2).bool())
        assert found.item() == pytest.approx(3 * hidden + 5.5, rel=1e-5)


@given(seed=st.integers(0, 10**6), uavs=st.integers(1, 6), rise=st.floats(0, 10))
def test_the_joint_value_rises_with_each_value_and_ignores_order_and_the_inactive(
    seed: int, uavs: int, rise: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values, active = torch.randn(2, uavs, generator=generator, dtype=torch.float64)
    active = active > 0
    outputs = torch.randn(uavs, 3 * WIDTH + 1, generator=generator, dtype=torch.float64)
    total = mix(values, outputs, active)
    for i in range(uavs):
        more = values.clone()
        more[i] += rise
        assert mix(more, outputs, active) >= total
        assert active[i] or mix(more, outputs, active) == total
    order = torch.randperm(uavs, generator=generator)
    torch.testing.assert_close(mix(values[order], outputs[order], active[order]), total)
    alone = mix(values[active], outputs[active], active[active])
    torch.testing.assert_close(alone, total)


def test_a_larger_team_learns_nothing_from_uavs_that_do_not_fly() -> None:
    rollout = three_uavs(inactive=False)
    active = torch.tensor([True, True, False]).expand(rollout.actions.shape)
    small = replace(rollout, **{name: getattr(rollout, name)[:, :, :2] for name in OF_UAVS})
    teams = []
    for each in (replace(rollout, active=active), small):
        teams.append(made(normalize_advantages=True, batch_number=2, replay_size=0))
        teams[-1].update(each, EPSILON, shuffler())
    for ours, theirs in zip(parameters(teams[0]), parameters(teams[1]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Numbered:
    """Symmetries of which each leaves its number in the actions."""

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        return torch.arange(num) + 100

    def take(self, batch: Transitions, index: Tensor, which: Tensor) -> Transitions:
        return replace(batch[index], actions=which)


@pytest.mark.parametrize("symmetries", [None, Numbered()])
def test_batches_hold_whole_joint_moves_under_one_symmetry(symmetries) -> None:
    team, rollout = made(), three_uavs(inactive=False)
    flat = team.transitions(rollout)
    flat.targets = torch.arange(24.0)  # moves, missions, UAVs: 2 · 4 · 3
    batches = list(flat.shuffled(3, shuffler(), symmetries))
    assert [len(batch) for batch in batches] == [9, 9, 6]
    moves = torch.cat([batch.targets for batch in batches]).view(-1, 3)
    assert Counter(moves.flatten().tolist()) == Counter(range(24))
    assert torch.equal(moves, moves[:, :1] + torch.arange(3.0))
    assert (moves[:, 0] % 3 == 0).all()
    assert moves[:, 0].tolist() != sorted(moves[:, 0].tolist())
    if symmetries is not None:
        assert batches[0].actions.tolist() == [100] * 3 + [101] * 3 + [102] * 3


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_the_target_actor_follows_the_actor(mode: str) -> None:
    team = make(algorithm="qmix", target_update_mode=mode, copy_rate=2, tau=0.25)
    assert same(team.target_actor, team.actor)
    before = [p.clone() for p in team.target_actor.parameters()]
    team.update(rollout_on(), 0.1, shuffler())
    pairs = list(zip(before, team.target_actor.parameters(), team.actor.parameters(), strict=True))
    for old, target, new in pairs:
        torch.testing.assert_close(target, 0.75 * old + 0.25 * new if mode == "soft" else old)
        assert not torch.equal(new, old)
    team.update(rollout_on(), 0.1, shuffler())
    assert same(team.target_actor, team.actor) == (mode == "hard")
    assert not any(p.requires_grad for p in team.target_actor.parameters())
