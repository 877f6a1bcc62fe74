"""Rollouts keep maps in the precision that the networks would cast them to anyway."""

from __future__ import annotations

import pytest
import torch

from marl_framework.algorithms.rollout import RolloutCollector
from marl_framework.training.trainer import Trainer
from tests.small import small_config

CPU = torch.device("cpu")


@pytest.mark.parametrize("network", ["cnn", "attention"])
@pytest.mark.parametrize("symmetries", [False, True])
def test_a_training_step_has_the_bits_that_exact_maps_give(network: str, symmetries: bool) -> None:
    widths = {"type": network, "conv_channels": 8, "hidden_dim": 8}
    config = small_config(
        observation={"heard_uavs": network == "attention"},
        networks={"actor": widths, "critic": widths},
        learning={"symmetries": symmetries, "data_passes": 1},
        compute={"precision": "bfloat16"},
    )
    found = []
    for precision in (torch.bfloat16, torch.float32):
        trainer = Trainer(config, CPU)
        if precision == torch.float32:
            trainer.collectors[0] = RolloutCollector(trainer.task, len(trainer.task.metric_names))
        rollout = trainer.collectors[0].collect(trainer.algorithm.act, 0.1)
        assert {rollout.observations.dtype, rollout.critic_maps.dtype} == {precision}
        stats = trainer.algorithm.update(rollout, 0.1, trainer.task.generator)
        weights = trainer.algorithm.modules["actor"].state_dict()
        found.append({"actions": rollout.actions, **stats, **weights})
    ours, exact = found
    assert ours.keys() == exact.keys()
    for name, value in exact.items():
        assert torch.equal(ours[name], value), name
