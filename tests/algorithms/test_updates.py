"""How many updates a training step makes, and what holds them back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.policy import kl_divergence, policy_probabilities
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import NetworkConfig
from marl_framework.networks.convolutional import ConvolutionalNetwork
from marl_framework.training.logging import METRICS
from tests.algorithms.making import concatenate, make, rollout_on, same, settings
from tests.algorithms.toy_game import ToyGame


def flown_by(coma: COMAWrapper, seed: int = 0) -> Rollout:
    """A rollout whose probabilities are those of the policy as it is."""
    rollout = rollout_on(num_envs=4)
    rollout.observations += seed
    rollout.critic_maps += seed
    logits = coma.act(rollout.observations.flatten(0, 1))
    logits = logits.view(*rollout.actions.shape, -1)
    rollout.probabilities = policy_probabilities(logits, rollout.masks, 0.1)
    return rollout


def updates_of(optimizer: torch.optim.Optimizer) -> int:
    (count,) = {int(state["step"]) for state in optimizer.state.values()} or {0}
    return count


# --- several training steps in one stretch ---------------------------------------------------


def recorded(coma: COMAWrapper, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The targets of each batch that the wrapper learns from, which tell transitions apart."""
    batches, learn = [], coma._learn

    def record(batch: Transitions, *others: Any, **named: Any) -> dict[str, torch.Tensor]:
        batches.append(batch.targets)
        return learn(batch, *others, **named)

    monkeypatch.setattr(coma, "_learn", record)
    return batches


@pytest.mark.parametrize("interval", [2, 4])
def test_one_stretch_takes_as_many_updates_on_the_same_transitions(interval, monkeypatch) -> None:
    # The target critic stays as it is, so that a transition has the same target both ways.
    options = {"data_passes": 3, "batch_number": 2, "copy_rate": 100}
    apart, together = make(**options), make(**options)
    rollouts = [flown_by(apart, seed) for seed in range(interval)]
    seen = [recorded(coma, monkeypatch) for coma in (apart, together)]
    for rollout in rollouts:
        apart.update(rollout, 0.1)
    together.update(concatenate(rollouts), 0.1, steps=interval)
    assert len(seen[0]) == len(seen[1]) == 3 * 2 * interval
    for optimizer in ("actor_optimizer", "critic_optimizer"):
        assert updates_of(getattr(apart, optimizer)) == 6 * interval
        assert updates_of(getattr(together, optimizer)) == 6 * interval
    assert {len(batch) for batches in seen for batch in batches} == {8}
    first, second = (torch.cat(batches).sort().values for batches in seen)
    torch.testing.assert_close(first, second)
    assert apart.training_steps == together.training_steps == interval


def test_a_stretch_that_passes_the_copy_rate_copies_the_critic() -> None:
    coma, copied = make(copy_rate=3), []
    for _ in range(4):
        coma.update(rollout_on(), 0.1, steps=2)  # training steps 2, 4, 6 and 8
        copied.append(same(coma.critic, coma.target_critic))
    assert copied == [False, True, True, False]


def test_a_soft_target_moves_as_far_in_one_stretch() -> None:
    coma = make(target_update_mode="soft", tau=0.25)
    old = [p.clone() for p in coma.target_critic.parameters()]
    coma.update(rollout_on(), 0.1, steps=3)
    for before, target, critic in zip(
        old, coma.target_critic.parameters(), coma.critic.parameters(), strict=True
    ):
        for _ in range(3):
            before = 0.75 * before + 0.25 * critic
        torch.testing.assert_close(target, before)


# --- the limit on KL -------------------------------------------------------------------------


def test_the_actor_waits_once_its_policy_is_too_far_and_the_critic_does_not() -> None:
    coma = make(kl_limit=1e-6, data_passes=3, batch_number=2)
    stats = coma.update(flown_by(coma), 0.1)
    assert updates_of(coma.actor_optimizer) == 1  # before it there was nothing between the two
    assert updates_of(coma.critic_optimizer) == 6
    assert stats["kl_halted"].item() == pytest.approx(5 / 6)
    assert stats["skipped_updates"] == 0
    coma.update(flown_by(coma), 0.1)
    assert updates_of(coma.actor_optimizer) == 2  # the next training step starts anew


def test_a_halted_actor_is_where_its_last_update_left_it() -> None:
    limited, single = make(kl_limit=1e-6, data_passes=4), make(data_passes=4)
    rollout = flown_by(single)
    limited.update(rollout, 0.1, torch.Generator().manual_seed(1))
    single.update(rollout, 0.1, torch.Generator().manual_seed(1))
    assert not same(limited.actor, single.actor)
    assert same(limited.critic, single.critic)
    first = make(data_passes=1)
    flat = Transitions.of(rollout, first.targets(rollout))
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(1))
    first._learn(flat[order.tensor_split(2)[0]], 0.1)
    assert same(limited.actor, first.actor)


@pytest.mark.parametrize("micro_batch", [0, 3])
def test_a_limit_that_is_never_reached_changes_nothing(micro_batch: int) -> None:
    free, limited = make(micro_batch=micro_batch), make(kl_limit=100.0, micro_batch=micro_batch)
    for coma in (free, limited):
        stats = coma.update(rollout_on(), 0.1, torch.Generator().manual_seed(0))
    assert stats["kl_halted"] == 0
    assert same(free.actor, limited.actor)


def test_kl_is_that_of_the_definition() -> None:
    old = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    new = torch.tensor([[0.25, 0.75, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    divergence = torch.distributions.kl_divergence(
        torch.distributions.Categorical(old), torch.distributions.Categorical(new)
    )
    torch.testing.assert_close(kl_divergence(old, new), divergence)


def test_the_kl_of_the_log_is_that_before_each_update_of_the_last_pass() -> None:
    once, twice = make(data_passes=1, batch_number=1), make(data_passes=2, batch_number=1)
    rollout = flown_by(once)
    before = once.update(rollout, 0.1)["kl"]
    assert before.abs() < 1e-6
    moved = flown_by(once).probabilities
    after = kl_divergence(rollout.probabilities, moved).mean()
    assert after > 1e-5
    torch.testing.assert_close(twice.update(rollout, 0.1)["kl"], after, rtol=1e-3, atol=1e-7)
    meaning = METRICS["kl"][1]
    assert meaning == "KL(policy that flew ‖ policy), of the last pass, before each update [nat]"


def test_a_limit_with_a_gradient_scaler_is_refused(monkeypatch) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    monkeypatch.setattr("marl_framework.algorithms.actor_critic.grad_scaler", lambda *_: scaler)
    with pytest.raises(ConfigError, match=r"learning\.kl_limit: does not work with float16"):
        make(kl_limit=0.1)


def test_nothing_is_read_back_to_the_host() -> None:
    config = settings({"gradient_checkpointing": True}, kl_limit=0.01, normalize_advantages=True)
    coma = COMAWrapper(config, ToyGame.sizes, "meta")
    stats = coma.update(rollout_on("meta"), 0.1, steps=2)
    assert stats["kl_halted"].device.type == "meta"


# --- gradient checkpointing ------------------------------------------------------------------


def test_gradient_checkpointing_changes_no_bit() -> None:
    kept, recomputed = make(), make(compute={"gradient_checkpointing": True})
    for coma in (kept, recomputed):
        coma.update(rollout_on(), 0.1, torch.Generator().manual_seed(0))
    assert same(kept.actor, recomputed.actor)
    assert same(kept.critic, recomputed.critic)


def test_gradient_checkpointing_keeps_less_until_the_backward_pass() -> None:
    widths = NetworkConfig(conv_channels=16, hidden_dim=16)
    network, maps = ConvolutionalNetwork(7, (11, 11), 6, widths), torch.randn(32, 7, 11, 11)
    kept = []
    for network.recompute in (False, True):
        saved: dict[int, int] = {}

        def keep(tensor: torch.Tensor, saved: dict[int, int] = saved) -> torch.Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(maps).sum()
        weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
        kept.append(sum(size for place, size in saved.items() if place not in weights))
    assert kept[1] < kept[0] / 2
