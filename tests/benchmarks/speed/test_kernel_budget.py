"""A training stays within its budget of GPU kernels and within its estimated memory.

Limits are a little above the last counts: lower them when the counts fall.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from benchmarks.helpers.command_line import with_overrides
from benchmarks.helpers.pretend_gpu import PretendGpu, pretend_gpu
from benchmarks.speed import kernel_budget
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from tests.benchmarks.running import run

# Aims: 150 kernels a joint step, 3.2 MB a mission and, with one pass, 4600 kernels a training step.
LIMITS = {"joint_step": 88, "megabytes": 3.2, "training_step": 3_890}
KEPT = ("missions", "tables", "transitions", "weights")


@cache
def counted(name: str, triton: bool, predicted: bool) -> dict[str, Any]:
    if triton:
        pytest.importorskip("triton")
    # The time of a validation grows with its missions, which draw one by one; more passes repeat
    # the same kernels and hold no more memory.
    config = with_overrides(load_config(name), "evaluation.missions=8", "learning.data_passes=1")
    if predicted:
        config = kernel_budget.with_channels_of(config, "params_collective.yaml")
    if not triton:
        # Three times the missions with a third of the moves give the same transitions.
        missions = 3 * config.environment.num_envs
        config = with_overrides(
            config,
            "experiment.constraints.budget=4",
            f"environment.num_envs={missions}",
        )
    return kernel_budget.count(config, triton)


@pytest.mark.soak
def test_a_training_stays_within_its_budget() -> None:
    found = counted("params_gpu.yaml", True, False)
    step = found["joint_step"]
    used = {
        "joint_step": step["kernels"],
        "megabytes": step["megabytes"],
        "training_step": found["training_step"]["kernels"],
    }
    for name, limit in LIMITS.items():
        assert 0.9 * limit < used[name] <= limit, (name, found["stages"])
    assert found["update"]["kernels"] <= 2_580


@pytest.mark.soak
def test_predictions_look_at_each_belief_once() -> None:
    found = counted("params_gpu.yaml", True, True)
    step, stages = found["joint_step"], found["stages"]
    assert 190 < step["kernels"] <= 213, stages
    rows, cols = load_config("params_gpu.yaml").geometry.map_shape
    once = 4e-6 * rows * cols
    assert 4 * once < stages["observe"]["megabytes"] < 8.3 * once
    assert once < stages["critic maps"]["megabytes"] < 2.1 * once


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "triton", "predicted"),
    [
        ("params.yaml", False, False),
        ("params_gpu.yaml", True, False),
        ("params_gpu.yaml", True, True),
    ],
)
def test_no_more_memory_than_estimated(name: str, triton: bool, predicted: bool) -> None:
    found = counted(name, triton, predicted)
    peaks, parts = found["peak_bytes"], found["estimated_bytes"]
    kept = sum(parts[part] for part in KEPT)
    assert peaks["rollout"] <= kept + max(parts["windows"], parts["activations"])
    assert peaks["update"] <= kept + parts["activations"]
    assert peaks["validation"] <= kept + parts["validation"]
    assert max(peaks.values()) <= found["estimated_peak_bytes"] <= 1.5 * max(peaks.values())


@pytest.mark.soak
@pytest.mark.usefixtures("quick")
def test_the_table_has_all_paths(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernel_budget, "MEMORY", (1,))
    found = run(kernel_budget, tmp_path)
    text = capsys.readouterr().out
    assert all(stage in text for stage in kernel_budget.ROLLOUT)
    kernels, _, plain, _ = found["paths"]
    assert kernels["joint_step"]["kernels"] < plain["joint_step"]["kernels"]
    assert kernels["stages"]["fuse"]["kernels"] > 5  # one to read, two for each belief
    assert kernels["most_missions"]["1"] >= plain["most_missions"]["1"] > 0


def test_one_step_more_than_most_missions_does_not_fit(monkeypatch) -> None:
    def a_mebibyte_each(config: Config, **_: object) -> dict[str, int]:
        return {"missions": 2**20 * config.environment.num_envs}

    monkeypatch.setattr(kernel_budget, "memory_estimate", a_mebibyte_each)
    most = kernel_budget.most_missions(load_config("params_gpu.yaml"), False, 24)
    assert 2**20 * most <= 0.9 * 24e9 < 2**20 * (most + kernel_budget.STEP)


def test_nothing_is_counted_twice_and_views_are_free() -> None:
    gpu = PretendGpu(values=False)
    with pretend_gpu(gpu), gpu.stage("here"):
        a = torch.zeros(10, 10, device="cuda")  # 400 bytes written
        b = (a.T[2:] + 1).sum(0)  # 320 read, 320 written; 320 read, 40 written
        del a
    assert gpu.kernels == {"here": 3}
    assert gpu.bytes == {"here": 400 + 640 + 360}
    assert (gpu.alive, gpu.peak) == (40, 400 + 320 + 40)
    assert b.device.type == "cuda"
