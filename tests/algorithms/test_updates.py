"""Number and content of the updates of a training step, the target critic and the limit on KL."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.optimisers import apply_gradients, gradient_norm, make_adam
from marl_framework.algorithms.policy import kl_divergence, policy_probabilities
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.config.errors import ConfigError
from tests.algorithms.making import (
    ToyGame,
    concatenate,
    make,
    parameters,
    rollout_on,
    same,
    settings,
    shuffler,
)


def flown_by(coma: COMAWrapper, seed: int = 0) -> Rollout:
    """A rollout with the probabilities of the current policy."""
    rollout = rollout_on(num_envs=4)
    rollout.observations += seed
    rollout.critic_maps += seed
    logits = coma.act(rollout.observations.flatten(0, 1)).view(*rollout.actions.shape, -1)
    rollout.probabilities = policy_probabilities(logits, rollout.masks, 0.1)
    return rollout


def updates_of(optimizer: torch.optim.Optimizer) -> int:
    (count,) = {int(state["step"]) for state in optimizer.state.values()} or {0}
    return count


def recorded(coma: COMAWrapper) -> list[torch.Tensor]:
    """Targets of each batch that the critic learns from; they identify transitions."""
    batches, loss = [], coma.critic_loss
    coma.critic_loss = lambda out, part: batches.append(part.targets) or loss(out, part)
    return batches


@pytest.mark.parametrize(
    "gradient",
    [
        torch.randn(3, 2, 5, 4),
        torch.randn(3, 2, 5, 4).contiguous(memory_format=torch.channels_last),
        torch.randn(6, 8)[::2, ::3],
        torch.randn(1).expand(4, 3),
        torch.tensor(-2.0),
    ],
)
def test_the_gradient_norm_is_of_all_elements_in_any_layout(gradient: torch.Tensor):
    torch.testing.assert_close(gradient_norm([gradient, gradient]), 2**0.5 * gradient.norm())


def test_the_collector_records_what_happened():
    coma, game = make(), ToyGame(4)
    rollout = RolloutCollector(game).collect(coma.act, 0.3)
    assert rollout.actions.shape == (2, 4, 2)
    replay = ToyGame(4)
    for t in range(2):
        replay.t = t
        observation = replay.observe(torch.empty_like(rollout.observations[t]))
        torch.testing.assert_close(rollout.observations[t], observation)
        own = replay.critic_maps(rollout.actions[t], torch.empty_like(rollout.critic_maps[t]))
        torch.testing.assert_close(rollout.critic_maps[t], own)
        pi = policy_probabilities(coma.act(observation), rollout.masks[t], 0.3)
        torch.testing.assert_close(rollout.probabilities[t], pi)
        torch.testing.assert_close(rollout.rewards[t], replay.step(rollout.actions[t])[0])


def test_all_transitions_are_used_once_per_pass_in_equal_batches():
    coma, rollout = make(batch_number=5, data_passes=3), rollout_on(num_envs=4)  # 16 transitions
    seen, targets = recorded(coma), coma.transitions(rollout).targets.sort().values
    coma.update(rollout, 0.1)
    assert [len(batch) for batch in seen] == [4, 3, 3, 3, 3] * 3
    for k in range(3):
        one_pass = torch.cat(seen[5 * k : 5 * k + 5]).sort().values
        torch.testing.assert_close(one_pass, targets)


@pytest.mark.parametrize("interval", [2, 4])
def test_several_steps_at_once_make_as_many_updates_on_the_same_transitions(interval):
    # The target critic does not change, so a transition has the same target both ways.
    options = {"data_passes": 3, "batch_number": 2, "copy_rate": 100}
    apart, together = make(**options), make(**options)
    rollouts = [flown_by(apart, seed) for seed in range(interval)]
    seen = [recorded(coma) for coma in (apart, together)]
    for rollout in rollouts:
        apart.update(rollout, 0.1)
    together.update(concatenate(rollouts), 0.1, steps=interval)
    for coma, batches in zip((apart, together), seen, strict=True):
        assert [len(batch) for batch in batches] == [8] * (6 * interval)
        assert updates_of(coma.actor_optimizer) == updates_of(coma.critic_optimizer) == 6 * interval
        assert coma.training_steps == interval
    first, second = (torch.cat(batches).sort().values for batches in seen)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("option", [{"normalize_advantages": True}, {"advantage": "return"}])
def test_options_of_the_advantage_change_the_actors_step_only(option):
    plain, scaled = make(), make(**option)
    for coma in (plain, scaled):
        coma.update(rollout_on(), 0.1, shuffler())
    assert same(plain.critic, scaled.critic)
    assert not same(plain.actor, scaled.actor)


def test_bfloat16_learns_much_the_same():
    exact, mixed = make(), make(compute={"precision": "bfloat16"})
    stats = [coma.update(rollout_on(), 0.1) for coma in (exact, mixed)]
    assert mixed.actor(torch.zeros(1, 2, 3, 3)).dtype is torch.float32
    assert mixed.precision is torch.bfloat16
    assert next(mixed.actor.parameters()).dtype is torch.float32
    torch.testing.assert_close(stats[0]["critic_loss"], stats[1]["critic_loss"], rtol=0.05, atol=0)


def test_a_state_in_another_order_of_memory_continues_alike():
    def turned(value):
        is_maps = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if is_maps else value

    coma, other, expected = make(), make(seed=8), make(seed=9)
    coma.update(rollout_on(), 0.1)
    state = coma.state_dict()
    other.load_state_dict(tree_map(turned, deepcopy(state)))
    expected.load_state_dict(deepcopy(state))
    for team in (other, expected):
        team.update(rollout_on(seed=2), 0.1, shuffler())
    assert all(same(other.modules[name], expected.modules[name]) for name in other.modules)


def test_targets_come_from_the_target_critic_and_keep_episodes_apart():
    coma, first, second = make(), rollout_on(num_envs=3), rollout_on(num_envs=1)
    before, after = (
        coma.transitions(each).targets.view_as(each.actions) for each in (first, second)
    )
    joined = coma.transitions(concatenate([first, second])).targets
    torch.testing.assert_close(joined, torch.cat((before, after), 1).flatten())
    with torch.no_grad():
        for parameter in coma.critic.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(coma.transitions(first).targets, before.flatten())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, [False, False, True, False, False, True]), (2, [False, True, True, False])],
)
def test_a_hard_target_is_copied_every_copy_rate_steps(steps, expected):
    coma, copied = make(copy_rate=3), []
    for _ in expected:
        coma.update(rollout_on(), 0.1, steps=steps)
        copied.append(same(coma.critic, coma.target_critic))
    assert copied == expected


@pytest.mark.parametrize("steps", [1, 3])
def test_a_soft_target_moves_by_tau_in_each_step(steps):
    coma = make(target_update_mode="soft", tau=0.25)
    old = [p.clone() for p in coma.target_critic.parameters()]
    coma.update(rollout_on(), 0.1, steps=steps)
    for before, target, critic in zip(
        old, coma.target_critic.parameters(), coma.critic.parameters(), strict=True
    ):
        for _ in range(steps):
            before = 0.75 * before + 0.25 * critic
        torch.testing.assert_close(target, before)


class WithBuffer(COMAWrapper):
    def new_critic(self, config):
        network = super().new_critic(config)
        network.register_buffer("projection", torch.randn(3))
        return network


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_a_target_has_the_buffers_of_its_critic(tau):
    coma = WithBuffer(settings(target_update_mode="soft", tau=tau), ToyGame.sizes, "cpu")
    coma.critic.projection += 1
    coma.update(rollout_on(), 0.1)
    assert torch.equal(coma.target_critic.projection, coma.critic.projection)


def test_the_actor_halts_once_its_policy_is_too_far_and_the_critic_does_not():
    coma = make(kl_limit=1e-6, data_passes=3, batch_number=2)
    stats = coma.update(flown_by(coma), 0.1)
    assert updates_of(coma.actor_optimizer) == 1  # the policy is the old one before it
    assert updates_of(coma.critic_optimizer) == 6
    assert stats["kl_halted"].item() == pytest.approx(5 / 6)
    assert stats["skipped_updates"] == 0
    coma.update(flown_by(coma), 0.1)
    assert updates_of(coma.actor_optimizer) == 2  # the next training step learns again


def test_a_halted_actor_keeps_its_last_update():
    options = {"batch_number": 1}
    once, limited = make(data_passes=1, **options), make(kl_limit=1e-6, data_passes=4, **options)
    for coma in (once, limited):
        coma.update(flown_by(coma), 0.1, shuffler())
    assert same(limited.actor, once.actor)
    assert not same(limited.critic, once.critic)


@pytest.mark.parametrize("micro_batch", [0, 3])
def test_a_limit_that_is_never_reached_changes_nothing(micro_batch):
    free, limited = make(micro_batch=micro_batch), make(kl_limit=100.0, micro_batch=micro_batch)
    for coma in (free, limited):
        stats = coma.update(rollout_on(), 0.1, shuffler())
    assert stats["kl_halted"] == 0
    assert same(free.actor, limited.actor)


def test_the_kl_of_the_log_is_that_before_each_update_of_the_last_pass():
    once, twice = make(data_passes=1, batch_number=1), make(data_passes=2, batch_number=1)
    rollout = flown_by(once)
    assert once.update(rollout, 0.1)["kl"].abs() < 1e-6
    after = kl_divergence(rollout.probabilities, flown_by(once).probabilities).mean()
    assert after > 1e-5
    torch.testing.assert_close(twice.update(rollout, 0.1)["kl"], after, rtol=1e-3, atol=1e-7)


def test_a_limit_with_a_gradient_scaler_is_refused(monkeypatch):
    monkeypatch.setattr(torch.amp.GradScaler, "is_enabled", lambda _: True)
    with pytest.raises(ConfigError, match=r"^learning\.kl_limit"):
        make(kl_limit=0.1)


SCALER = torch.amp.GradScaler("cpu", enabled=False)


def moments_of(coma):
    """Weights and Adam's moments, without the counter of training steps."""
    return {name: str(v) for name, v in coma.state_dict().items() if name != "training_step"}


def spoiled(what: str):
    rollout = rollout_on(num_envs=4)
    if what == "state":
        rollout.observations[0, 0, 0] = float("nan")
    else:
        rollout.rewards[1, 0] = float(what)
    return rollout


@pytest.mark.parametrize("what", ["nan", "inf", "state"])
@pytest.mark.parametrize("started", [False, True])
def test_a_bad_update_changes_nothing(what: str, started: bool) -> None:
    coma = make(batch_number=1, data_passes=1, target_update_mode="soft", tau=1.0)
    if started:
        coma.update(rollout_on(), 0.1)
    state, weights = moments_of(coma), parameters(coma)
    stats = coma.update(spoiled(what), 0.1)
    bad_actor = what == "state"
    assert stats["skipped_updates"] == 1 + bad_actor
    actor = 0 if bad_actor else len(list(coma.actor.parameters()))
    pairs = list(zip(weights, parameters(coma), strict=True))
    assert all(torch.equal(old, new) for old, new in pairs[actor:])
    if bad_actor and started:  # the moments and step counts too
        assert moments_of(coma) == state
    assert coma.update(rollout_on(), 0.1)["skipped_updates"] == 0
    assert all(p.isfinite().all() for p in parameters(coma))


def test_only_the_bad_batch_is_skipped() -> None:
    coma = make(batch_number=4, data_passes=1)
    before = parameters(coma)
    stats = coma.update(spoiled("state"), 0.1, shuffler(4))
    assert 2 <= stats["skipped_updates"] < 8
    assert not all(map(torch.equal, before, parameters(coma)))


def test_an_infinite_loss_is_bad_though_its_gradients_are_finite() -> None:
    network = nn.Linear(3, 2)
    optimizer, before = make_adam(network, 0.1, recorded=False), network.weight.clone()
    for loss, expected in ((torch.inf, 1), (1.0, 0)):
        for p in network.parameters():
            p.grad = torch.ones_like(p)
        assert apply_gradients(torch.tensor(loss), optimizer, SCALER, 1.0)[1] == expected
        assert torch.equal(network.weight, before) == bool(expected)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("limit", [0.1, 1e9])
def test_steps_are_those_of_plain_adam_on_clipped_gradients(limit: float, fused: bool) -> None:
    torch.manual_seed(3)
    ours, theirs = (nn.Parameter(value) for value in torch.ones(2, 5))
    guarded, plain = (torch.optim.Adam([p], lr=0.1, fused=fused) for p in (ours, theirs))
    for gradient in torch.randn(3, 5):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        norm, bad = apply_gradients(torch.zeros(()), guarded, SCALER, limit)
        torch.testing.assert_close(norm, gradient.norm())
        assert not bad
        nn.utils.clip_grad_norm_([theirs], limit)
        plain.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0 if limit > 1 else 1e-6)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-9)
