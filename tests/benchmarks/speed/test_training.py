"""Training steps, and their networks alone."""

from __future__ import annotations

import pytest

from benchmarks.helpers.harness import CPU
from benchmarks.speed import training
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer
from tests.benchmarks.running import positive, refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_training_writes_consistent_numbers(tmp_path, capsys):
    found = run(training, tmp_path, "--steps", "2", "--precision", "float32")
    step, alone = found["seconds_per_training_step"], found["networks"]
    assert found["transitions_per_training_step"] == 4 * 2 * 4  # missions, UAVs, moves
    assert found["agent_transitions_per_s"] * step == pytest.approx(32)
    assert alone["agent_transitions_per_s"] * alone["seconds"] == pytest.approx(32)
    assert alone["flops_per_s"] * alone["seconds"] == pytest.approx(alone["flops"])
    assert 0 < found["lower_quartile"] <= step <= found["upper_quartile"]
    assert found["precision"] == "float32"
    assert found["settings"]["configuration"]["compute"]["precision"] == "float32"
    assert set(found["stages"]) == {"rollout", "update", "other"}
    assert set(alone["stages"]) == {"inference", "targets", "learning"}
    assert positive([*alone["stages"].values(), found["stages"]["rollout"]])
    assert positive([found["share_of_network_limit"], found["peak_memory_bytes"]])
    assert found["settings"]["inference_batches"] == {"8": 4}
    assert found["settings"]["learning_batches"] == {"16": 4}  # 2 batches, 2 passes
    assert "of the networks' limit" in capsys.readouterr().out


def test_share_is_the_median_over_pairs(config, monkeypatch):
    """Neither a slow step nor a fast machine in one pair moves it."""
    walls, alone = iter([1.0, 10.0, 2.0]), iter([0.5, 0.0, 4.0, 1.8])
    monkeypatch.setattr(StageTimer, "wall", lambda _: next(walls))
    monkeypatch.setattr(
        training.NetworksAlone, "seconds", lambda _: {"inference": 0.0, "learning": next(alone)}
    )
    monkeypatch.setattr(training.NetworksAlone, "flops", lambda _: 7)
    monkeypatch.setattr(training, "Trainer", StillTrainer)
    walls = iter([100.0, 1.0, 10.0, 2.0])  # the first warms up
    found = training.run(config, CPU, 3)
    assert found["share_of_network_limit"] == pytest.approx(0.5)  # of 0.5, 0, 2
    assert found["seconds_per_training_step"] == 2.0


class StillTrainer(Trainer):
    """Counts its training steps and makes none."""

    def training_step(self, timer):
        self.episodes += self.task.num_envs
        return {}, {}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--steps", "0"], "--steps 0: must lie in 1"),
        (["--steps", "many"], "many"),
        (["--precision", "float8"], "float8"),
        (["--precision", "float16"], "float16 needs a GPU"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--out", "found.txt"], "must end in .json"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, complaint, tmp_path, capsys):
    assert complaint in refusal(training, tmp_path, capsys, *arguments)
