from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch.func import functional_call, grad
from torch.utils._pytree import tree_map

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.losses import (
    actor_loss,
    counterfactual_advantage,
    critic_loss,
    taken,
)
from marl_framework.algorithms.policy import policy_probabilities
from marl_framework.algorithms.rollout import RolloutCollector
from marl_framework.config.learning import NetworkConfig
from marl_framework.config.model import NetworkSizes
from marl_framework.networks.convolutional import ConvolutionalNetwork
from marl_framework.networks.registry import make_actor, make_critic
from tests.algorithms.making import concatenate, make, rollout_on, same, settings
from tests.algorithms.toy_game import ToyGame


@pytest.mark.parametrize(("seed", "advantage"), [(0, "critic"), (1, "return")])
def test_a_two_by_two_team_game_is_solved(seed, advantage):
    coma = make(seed, advantage=advantage, target_update_mode="soft", tau=0.2)
    game = ToyGame(32, seed)
    collector = RolloutCollector(game)
    for _ in range(120):
        rollout = collector.collect(coma.act, 0.1)
        coma.update(rollout, 0.1, game.generator)
    final = collector.collect(coma.act, 0.0)
    assert final.rewards.mean() > 0.95  # 1 is the best, 0.325 is what random play gets


def test_the_collector_records_what_happened():
    coma, game = make(), ToyGame(4)
    rollout = RolloutCollector(game).collect(coma.act, 0.3)
    assert rollout.actions.shape == (2, 4, 2)
    replay = ToyGame(4)
    for t in range(2):
        replay._t = t
        observation = replay.observe(torch.empty_like(rollout.observations[t]))
        torch.testing.assert_close(rollout.observations[t], observation)
        own = replay.critic_maps(rollout.actions[t], torch.empty_like(rollout.critic_maps[t]))
        torch.testing.assert_close(rollout.critic_maps[t], own)
        torch.testing.assert_close(
            rollout.probabilities[t],
            policy_probabilities(coma.act(observation), rollout.masks[t], 0.3),
        )
        torch.testing.assert_close(rollout.rewards[t], replay.step(rollout.actions[t])[0])


def test_concatenated_rollouts_keep_episodes_apart():
    first, second = rollout_on(num_envs=3), rollout_on(num_envs=1)
    coma = make()
    joined = coma.targets(concatenate([first, second]))
    torch.testing.assert_close(joined, torch.cat((coma.targets(first), coma.targets(second)), 1))


def test_targets_come_from_the_target_critic():
    coma, rollout = make(), rollout_on()
    before = coma.targets(rollout)
    with torch.no_grad():
        for parameter in coma.critic.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(coma.targets(rollout), before)


def test_hard_target_copies_every_copy_rate_steps():
    coma = make(copy_rate=3)
    synchronised = []
    for _ in range(6):
        coma.update(rollout_on(), 0.1)
        synchronised.append(same(coma.critic, coma.target_critic))
    assert synchronised == [False, False, True, False, False, True]


def test_a_target_has_the_buffers_of_its_critic(monkeypatch):
    def with_buffer(*given):
        network = make_critic(*given)
        network.register_buffer("projection", torch.randn(3))
        return network

    monkeypatch.setattr("marl_framework.algorithms.coma.make_critic", with_buffer)
    for tau in (1.0, 0.1):
        coma = make(target_update_mode="soft", tau=tau)
        coma.critic.projection += 1
        coma.update(rollout_on(), 0.1)
        assert torch.equal(coma.target_critic.projection, coma.critic.projection)


def test_soft_target_moves_by_tau():
    coma = make(target_update_mode="soft", tau=0.25)
    old = [p.clone() for p in coma.target_critic.parameters()]
    coma.update(rollout_on(), 0.1)
    for before, target, critic in zip(
        old, coma.target_critic.parameters(), coma.critic.parameters(), strict=True
    ):
        torch.testing.assert_close(target, 0.75 * before + 0.25 * critic)


def test_all_transitions_are_used_once_per_pass_in_equal_batches(monkeypatch):
    coma, rollout = make(batch_number=5, data_passes=3), rollout_on(num_envs=4)  # 16 transitions
    sizes, seen, described = [], [], []

    def record(batch, epsilon, describe):
        sizes.append(len(batch))
        seen.append(batch.targets)
        described.append(describe)
        return {"skipped_updates": torch.tensor(0.0)}

    monkeypatch.setattr(coma, "_learn", record)
    targets = coma.targets(rollout)
    coma.update(rollout, 0.1)
    assert sizes == [4, 3, 3, 3, 3] * 3
    assert described == [False] * 10 + [True] * 5  # only the last pass is described
    for k in range(3):
        one_pass = torch.cat(seen[5 * k : 5 * k + 5]).sort().values
        torch.testing.assert_close(one_pass, targets.flatten().sort().values)


def test_gradient_norms_are_clipped_and_reported_before_clipping():
    tight = make(actor={"gradient_norm": 1e-6}, critic={"gradient_norm": 1e-6})
    stats = tight.update(rollout_on(), 0.1)
    assert stats["critic_gradient_norm"] > 1e-3
    for network in (tight.actor, tight.critic):
        norm = torch.stack([p.grad.norm() for p in network.parameters()]).norm()
        assert norm <= 1.1e-6


@pytest.mark.parametrize("norm", [1e-2, 1e3])
def test_clipping_within_the_optimiser_is_clipping_before_it(norm):
    within, before = (
        make(actor={"gradient_norm": norm}, critic={"gradient_norm": norm}) for _ in range(2)
    )
    for optimizer in (before.actor_optimizer, before.critic_optimizer):
        for options in (optimizer.defaults, *optimizer.param_groups):
            options["fused"] = False
    for coma in (within, before):
        coma.update(rollout_on(), 0.1, torch.Generator().manual_seed(0))
    for name in ("actor", "critic"):
        for one, other in zip(
            getattr(within, name).parameters(), getattr(before, name).parameters(), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("option", [{"normalize_advantages": True}, {"advantage": "return"}])
def test_options_of_the_advantage_change_the_actors_step_only(option):
    plain, scaled = make(), make(**option)
    for coma in (plain, scaled):
        coma.update(rollout_on(), 0.1, torch.Generator().manual_seed(0))
    assert same(plain.critic, scaled.critic)
    assert not same(plain.actor, scaled.actor)


def test_a_loaded_state_goes_on_bit_for_bit(tmp_path):
    coma = make()
    coma.update(rollout_on(), 0.1)
    torch.save(coma.state_dict(), tmp_path / "state.pt")
    other = make(seed=9)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for wrapper in (coma, other):
        wrapper.update(rollout_on(), 0.1, torch.Generator().manual_seed(1))
    assert other.training_steps == 2
    assert same(coma.actor, other.actor)
    assert same(coma.critic, other.critic)
    assert same(coma.target_critic, other.target_critic)


def test_a_state_from_another_order_of_memory_goes_on_alike():
    def turned(value):
        is_maps = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if is_maps else value

    coma, other, expected = make(), make(seed=8), make(seed=9)
    coma.update(rollout_on(), 0.1)
    state = coma.state_dict()
    other.load_state_dict(tree_map(turned, deepcopy(state)))
    expected.load_state_dict(deepcopy(state))
    for wrapper in (other, expected):
        wrapper.update(rollout_on(seed=2), 0.1, torch.Generator().manual_seed(1))
    for name in other.modules:
        assert same(getattr(other, name), getattr(expected, name))


def test_bfloat16_learns_much_the_same():
    exact, mixed = make(), make(compute={"precision": "bfloat16"})
    stats = [coma.update(rollout_on(), 0.1) for coma in (exact, mixed)]
    assert mixed.actor(torch.zeros(1, 2, 3, 3)).dtype is torch.float32
    assert mixed.precision is torch.bfloat16
    assert next(mixed.actor.parameters()).dtype is torch.float32
    torch.testing.assert_close(stats[0]["critic_loss"], stats[1]["critic_loss"], rtol=0.05, atol=0)


def test_the_whole_update_runs_on_the_meta_device():
    """Backward and Adam included; every read-back to the host raises there."""
    coma = COMAWrapper(settings({"device": "auto"}), ToyGame.sizes, "meta")
    stats = coma.update(rollout_on("meta"), 0.1)
    assert stats["kl"].device.type == "meta"
    assert coma.act(torch.empty(3, 2, 2, 3, 3, device="meta")).shape == (3, 2, 2)


def test_the_compiler_accepts_the_losses_with_their_gradients_whole():
    coma, rollout = make(), rollout_on()
    flat = Transitions.of(rollout, coma.targets(rollout))
    observations, states, actions = flat.observations, flat.critic_inputs, flat.actions
    masks, targets = flat.masks, flat.targets

    def value_loss(parameters):
        values = functional_call(coma.critic, parameters, (states,))
        return critic_loss(values, actions, targets)

    def policy_loss(parameters):
        values = coma.critic(states).detach()
        logits = functional_call(coma.actor, parameters, (observations,))
        pi = policy_probabilities(logits, masks, 0.1)
        return actor_loss(pi, actions, counterfactual_advantage(values, pi, actions), 0.01)

    for network, loss in ((coma.critic, value_loss), (coma.actor, policy_loss)):
        torch._dynamo.reset()
        parameters = {name: p.detach() for name, p in network.named_parameters()}
        compiled = torch.compile(grad(loss), fullgraph=True, backend="eager")(parameters)
        leaf = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        expected = torch.autograd.grad(loss(leaf), list(leaf.values()))
        for got, want in zip(compiled.values(), expected, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("shape", [(11, 11), (6, 6), (2, 2), (5, 13), (21, 21)])
def test_networks_take_any_lattice(shape):
    sizes = NetworkSizes(actor_channels=7, critic_channels=12, shape=shape, num_actions=6)
    config = settings()
    actor = make_actor(config.networks, config.compute, sizes)
    critic = make_critic(config.networks, config.compute, sizes)
    assert actor(torch.zeros(2, 7, *shape)).shape == (2, 6)
    assert critic(torch.zeros(2, 12, *shape)).shape == (2, 6)


def test_the_papers_networks_end_in_one_cell():
    actor = ConvolutionalNetwork(7, (11, 11), 6, NetworkConfig())
    counts = [p.numel() for p in actor.parameters() if p.dim() > 1]
    assert counts == [7 * 256 * 25, 256 * 256 * 16, 256 * 256 * 16, 256 * 256, 256 * 6]


def test_taken_selects_along_the_last_axis():
    values = torch.arange(6.0).view(2, 3)
    assert taken(values, torch.tensor([2, 0])).tolist() == [2.0, 3.0]
