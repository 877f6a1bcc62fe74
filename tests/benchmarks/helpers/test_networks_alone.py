"""The network calls of a training step, made alone."""

from __future__ import annotations

import pytest
import torch

from benchmarks.helpers import networks_alone
from benchmarks.helpers.harness import CPU
from benchmarks.helpers.networks_alone import NetworkCalls, NetworksAlone
from marl_framework.config.loading import load_config
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer
from tests.benchmarks.running import FLOAT32


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["environment.num_envs=3", "learning.batch_size=20", "learning.batch_number=3"],
        ["learning.batch_number=16", "learning.batch_size=2", "learning.data_passes=1"],
    ],
)
def test_calls_alone_are_those_of_a_training_step(overrides):
    trainer = Trainer(load_config("params_test.yaml", [FLOAT32, *overrides]), CPU)
    calls = {"actor": [], "critic": [], "target_critic": []}
    for name, sizes in calls.items():

        def note(_module, inputs, _outputs, sizes=sizes):
            sizes.append((len(inputs[0]), torch.is_grad_enabled()))

        trainer.algorithm.modules[name].register_forward_hook(note)
    trainer.make_steps(StageTimer(CPU))
    expected = NetworkCalls.of(trainer.config, trainer.device)
    learning = [(size, True) for size in expected.learning]
    assert calls["target_critic"] == [(size, False) for size in expected.targets]
    assert calls["critic"] == learning
    assert calls["actor"] == [(size, False) for size in expected.inference] + learning


def test_operations_of_the_networks(config):
    """Kernels 5, 4, 4 on 11 × 11 with 8 channels leave 7 × 7, 4 × 4, 1; then 8 → 8 → 6."""
    sizes, alone = config.network_sizes, NetworksAlone(config, CPU)

    def layers(channels):
        return [
            channels * 8 * 5**2 * 7**2, 8 * 8 * 4**2 * 4**2, 8 * 8 * 4**2, 8 * 8, 8 * 6,
        ]  # fmt: skip

    actor, critic = (layers(n) for n in (sizes.actor_channels, sizes.critic_channels))
    # Backward takes twice a forward pass, without the gradient of the inputs.
    learned = 3 * sum(actor) - actor[0] + 3 * sum(critic) - critic[0]
    calls = alone.calls
    expected = (
        sum(calls.inference) * sum(actor)
        + sum(calls.targets) * sum(critic)
        + sum(calls.learning) * learned
    )
    assert alone.flops() == 2 * expected


def test_products_are_those_of_the_layers(config, monkeypatch):
    """Each layer makes three products; together they take three times its forward operations."""
    sizes, made = config.network_sizes, []
    monkeypatch.setattr(
        networks_alone,
        "product_seconds",
        lambda *sides_and_more: made.append(sides_and_more[:3]) or 1.0,
    )
    alone = NetworksAlone(config, CPU)
    rate = alone.product_rate()
    rows = max(alone.calls.learning)
    assert made[0] == (rows * 49, sizes.actor_channels * 25, 8)
    assert len(made) == 2 * 5 * 3
    assert rate == sum(2 * m * k * n for m, k, n in made) / len(made)
