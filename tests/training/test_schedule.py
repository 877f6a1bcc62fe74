"""How learning rates follow the batch and the training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marl_framework.config.model import Config
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer
from tests.small import small_config
from tests.test_resume import House


def config_with(steps: int = 11, num_envs: int = 4, **learning) -> Config:
    """A rollout of 4 missions × 3 UAVs × 5 moves is 60 transitions."""
    return small_config(num_envs=num_envs, learning={"training_steps": steps, **learning})


def factors(config: Config) -> list[float]:
    steps = config.learning.training_steps
    return [config.schedule.learning_rate_factor(step) for step in range(steps)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0] * 11),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75] + [1.0] * 8),
        ({"lr_decay": 0.2}, [1 - 0.08 * step for step in range(11)]),
        ({"lr_decay": 0.2, "steps": 1}, [1.0]),
        (
            {"warmup_steps": 5, "lr_decay": 0},
            [min((step + 1) / 5, 1) * (1 - 0.1 * step) for step in range(11)],
        ),
    ],
)
def test_rates_warm_up_and_decay_along_lines(settings: dict, expected: list[float]) -> None:
    assert factors(config_with(**settings)) == pytest.approx(expected)


def test_decay_ends_at_its_share() -> None:
    schedule = config_with(lr_decay=0.2).schedule
    assert schedule.learning_rate_factor(50) == pytest.approx(0.2)  # of a longer run


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("sqrt", 3.0), ("linear", 9.0)])
def test_rates_follow_the_batch_from_the_base_batch_on(scaling: str, factor: float) -> None:
    # 2 batches of 90: three rollouts of 60 transitions fill them exactly.
    config = config_with(batch_size=90, batch_number=2, lr_base_batch=10, lr_scaling=scaling)
    assert config.schedule.transitions_per_step == 180
    assert config.schedule.learning_rate_factor(0) == pytest.approx(factor)


def test_the_batch_is_what_is_collected_not_what_is_asked_for() -> None:
    config = config_with(batch_size=1, batch_number=3, lr_base_batch=10, lr_scaling="linear")
    assert config.schedule.transitions_per_batch == 20
    assert config.schedule.learning_rate_factor(0) == pytest.approx(2.0)


def test_the_optimisers_take_the_rates_of_the_step() -> None:
    config = config_with(warmup_steps=4, lr_decay=0.5, data_passes=1, batch_number=1)
    trainer = Trainer(config, torch.device("cpu"))
    optimizers = (trainer.algorithm.actor_optimizer, trainer.algorithm.critic_optimizer)
    timer, logged, seen = StageTimer(torch.device("cpu")), [], []
    for _ in range(11):
        logged.append(trainer.make_steps(timer)[0]["learning_rate_factor"])
        seen.append([group["lr"] for o in optimizers for group in o.param_groups])
    assert logged == factors(config)
    actor, critic = config.learning.actor.learning_rate, config.learning.critic.learning_rate
    assert seen == [[actor * factor, critic * factor] for factor in logged]


def test_a_resumed_training_goes_on_with_its_rates(tmp_path: Path, monkeypatch) -> None:
    house = House(tmp_path, monkeypatch)
    sets = ("learning.warmup_steps=3", "learning.lr_decay=0.1", "learning.lr_scaling=sqrt")
    assert house.train("whole", sets=sets) == 0
    house.crash("t", 6, sets=sets)
    assert house.train("t", "--resume", sets=sets) == 0
    house.assert_same("t", "whole")
    assert house.train("constant") == 0
    assert house.results("constant")["weights_sha256"] != house.results("t")["weights_sha256"]
