"""What a training writes, and that a rank without a folder does the same and writes nothing."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import RandomPlanner
from marl_framework.runs.checkpoint import load_checkpoint
from marl_framework.runs.checkpoint_store import CheckpointStore
from marl_framework.runs.folder import RunFolder
from marl_framework.stage_timer import StageTimer
from marl_framework.training import outputs
from marl_framework.training.outputs import Outputs
from marl_framework.training.trainer import Trainer
from tests.conftest import one_pixel
from tests.small import config_with
from tests.terminal import Clock

CPU = torch.device("cpu")


@pytest.mark.parametrize("number", [0, 5])
def test_checkpoints_come_by_steps_and_by_minutes(tmp_path: Path, monkeypatch, number: int) -> None:
    clock = Clock()
    monkeypatch.setattr(outputs, "CheckpointStore", partial(CheckpointStore, clock=clock))
    by = (f"checkpoint_interval={number}", f"checkpoint_minutes={number / 2.5}", "writers=[]")
    config = config_with(*(f"logging.{setting}" for setting in by))
    with Outputs(config, CPU, RunFolder.create(tmp_path, "t", config, CPU)) as out:
        if not number:  # never
            clock.now += 1e6
            assert not out.is_checkpoint_due(7, 6)
            return
        steps = range(1, 11)
        assert [step for step in steps if out.is_checkpoint_due(step, step - 1)] == [5, 10]
        assert out.is_checkpoint_due(7, 4)  # a stretch of several training steps
        clock.now += 119
        assert not out.is_checkpoint_due(1, 0)
        clock.now += 1
        assert out.is_checkpoint_due(1, 0)
        out.save(1, {"training_step": 1})
        assert not out.is_checkpoint_due(2, 1)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_without_a_folder_everything_is_taken_and_nothing_written(empty: Path, capfd) -> None:
    config = config_with("logging.scalar_interval=1", "logging.checkpoint_interval=1")
    environment = MissionEnvironment(config, 1, CPU, "test")
    record = evaluate(environment, RandomPlanner(environment.lattice), 1, 3, "test")
    timer = StageTimer(CPU)
    with Outputs(config, CPU, None, profile=1) as out:
        assert out.logger.log(1, {"return": torch.tensor(1.5)}, {}) == {"return": 1.5}
        out.logger.write(1, {"share_rollout": 1.0})
        out.report(1, {"return": 1.5}, True, timer)
        out.say("a line")
        assert not out.is_checkpoint_due(1, 0)
        assert out.save(1, {"training_step": 1}, last={})
        out.save_best({"training_step": 1})
        out.draw(1, lambda: record)
        out.end_step()
        assert out.hardware == {}
    assert os.listdir(empty) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.soak
@pytest.mark.usefixtures("drawn")
def test_a_rank_without_a_folder_trains_as_one_with_it(empty: Path, tmp_path, capfd) -> None:
    config = config_with("logging.figure_interval=2")
    alone = Trainer(config, CPU)
    found = alone.train(None)
    assert os.listdir(empty) == []
    assert capfd.readouterr() == ("", "")
    run = RunFolder.create(tmp_path, "t", config, CPU)
    writing = Trainer(config, CPU)
    expected = writing.train(run)
    assert found["results"] == expected["results"]
    assert found["results"]["finished"]
    for name, module in alone.algorithm.modules.items():
        for key, value in writing.algorithm.modules[name].state_dict().items():
            assert torch.equal(module.state_dict()[key], value)
    assert torch.equal(alone.task.generator.get_state(), writing.task.generator.get_state())
    assert (run.figures / "mission.png").is_file()


@pytest.mark.parametrize("predictor", ["pretrained:predictor", "null", "nowhere"])
def test_the_figure_has_the_completed_map(
    predictor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    drawn: list[bool] = []

    def draw(record: FlightRecord, *rest: Any) -> None:
        drawn.append(record.completed is not None)
        one_pixel(record, *rest)

    monkeypatch.setattr(outputs, "mission_figure", draw)
    settings = f"evaluation.predictor={predictor}", "learning.training_steps=1"
    config = config_with(*settings)
    run = RunFolder.create(tmp_path, "t", config, CPU)
    assert Trainer(config, CPU).train(run)["results"]["finished"]
    if predictor == "nowhere":
        assert drawn == []
        assert "mission.png could not be drawn: evaluation.predictor" in capfd.readouterr().out
    else:
        assert drawn == [predictor != "null"]


def test_skipped_updates_are_counted_on_after_a_checkpoint(tmp_path, monkeypatch) -> None:
    config = config_with("learning.max_skipped_updates=100")
    run = RunFolder.create(tmp_path, "t", config, CPU)
    trainer = Trainer(config, CPU)
    update = trainer.algorithm.update

    def spoiled(rollout: Any, *others: Any) -> dict[str, torch.Tensor]:
        rollout.rewards[0, 0] = torch.nan
        return update(rollout, *others)

    monkeypatch.setattr(trainer.algorithm, "update", spoiled)
    trainer.train(run)
    state = load_checkpoint(run.checkpoints / "last.pt")
    skipped = int(state["skipped_updates"])
    assert 0 < skipped <= 4 * 4 * 2  # training steps, batches, networks
    longer = config_with("learning.max_skipped_updates=100", "learning.training_steps=5")
    again = Trainer(longer, CPU)
    again.load_state_dict(state)
    assert int(again.skipped) == skipped

    def skip(*_: Any) -> dict[str, torch.Tensor]:
        again.algorithm.training_steps += 1
        return {"skipped_updates": torch.tensor(2)}

    monkeypatch.setattr(again.algorithm, "update", skip)
    again.make_steps(StageTimer(CPU))
    assert int(again.skipped) == skipped + 2
