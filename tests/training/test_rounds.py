"""Trainings in rounds, from start to end: how they fail, go on, and what they leave."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework import predict
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict, dump_config
from marl_framework.config.model import Config
from marl_framework.prediction.trainer import PredictorTrainer
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.training import rounds
from tests.small import small_config

CPU = torch.device("cpu")


def settings(**sections: object) -> Config:
    worlds = ({"kinds": ("split",)}, {"kinds": ("random_field",), "cluster_radius": 3.0})
    small = {"rounds": 3, "missions": 2, "updates": 2, "batch_size": 8, "width": 4}
    return small_config(prediction={**small, "worlds": worlds}, **sections)


class House:
    """A folder with a params file and its runs."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "runs" / "p"
        self._file = folder / "small.yaml"
        dump_config(settings(logging={"directory": str(folder / "runs")}), self._file)

    def predict(self, *arguments: str) -> int:
        given = ("--config", str(self._file), "--device", "cpu", "--run-name", "p")
        return predict.main([*given, *arguments])

    def status(self) -> dict:
        return json.loads((self.run / "status.json").read_text())


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(PredictorTrainer, "finish", lambda *_: {})  # its figures take long
    return House(tmp_path)


def fail_in_round(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    real = PredictorTrainer.round

    def failing(trainer: PredictorTrainer) -> dict[str, float]:
        if trainer.rounds + 1 == number:
            raise error
        return real(trainer)

    monkeypatch.setattr(PredictorTrainer, "round", failing)


def test_on_another_kind_of_device_new_streams_begin(tmp_path: Path) -> None:
    trainer = PredictorTrainer(settings(), CPU)
    trainer.round()
    state = {**trainer.state_dict(), "device": "cuda"}
    for saved in state["generators"]:
        saved["missions"] = torch.zeros(16, dtype=torch.uint8)  # as a GPU's generator saves it
    save_checkpoint(tmp_path / "c.pt", state)
    told: list[str] = []
    resumed = PredictorTrainer(settings(), CPU)
    resumed.load_state_dict(load_checkpoint(tmp_path / "c.pt"), told.append)
    assert len(told) == 1
    fresh = PredictorTrainer(settings(), CPU)
    seeds = [generator.initial_seed() for generator in resumed.streams]
    assert len(set(seeds)) == 3
    assert not set(seeds) & {generator.initial_seed() for generator in fresh.streams}
    assert resumed.round()["error"] > 0


def test_a_checkpoint_of_another_kind_is_refused() -> None:
    team = make_algorithm(settings(), CPU).state_dict()
    trainer = PredictorTrainer(settings(), CPU)
    with pytest.raises(ConfigError, match=r"^checkpoint: the key predictor is missing;"):
        trainer.load_state_dict(team)
    predictor = {"predictor": trainer.network.state_dict(), "width": 4}
    with pytest.raises(ConfigError, match=r"the key 'optimizer' is missing; use a checkpoint"):
        trainer.load_state_dict({**team, **predictor, "config": config_to_dict(settings())})


def test_a_changed_configuration_is_refused_with_advice_that_works(house: House, refused) -> None:
    assert house.predict() == 0
    error = refused(house.predict, "--resume", "--set", "prediction.width=5")
    assert "prediction.width 4 -> 5" in error
    assert "--allow-changed" not in error


def test_a_failed_run_says_why_and_goes_on(house: House, capsys, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        fail_in_round(patch, 2, ArithmeticError("it broke"))
        with pytest.raises(ArithmeticError):
            house.predict()
    status = house.status()
    assert (status["state"], status["error"]) == ("failed", "ArithmeticError: it broke")
    checkpoint = load_checkpoint(house.run / "checkpoints" / "last.pt")
    hour = {**checkpoint, "seconds": 3600.0}
    save_checkpoint(house.run / "checkpoints" / "step-00000001.pt", hour)
    assert house.predict("--resume") == 0
    assert house.status()["state"] == "finished"
    summary = json.loads((house.run / "summary.json").read_text())
    assert summary["timing"]["seconds"] > 3600
    kept = {path.name for path in (house.run / "checkpoints").iterdir()}
    assert kept == {"step-00000003.pt", "last.pt", "best.pt"}


def test_a_full_disk_is_one_line_in_the_log_too(house: House, capsys, monkeypatch) -> None:
    fail_in_round(monkeypatch, 2, OSError(28, "No space left on device", "disk"))
    assert house.predict() == 1
    error = capsys.readouterr().err
    assert error.startswith("error: No space left on device: disk; ")
    log = (house.run / "train.log").read_text()
    assert log.endswith(error)
    assert "Traceback" not in log


@pytest.mark.parametrize("number", [1, 3])
def test_an_interruption_at_once_says_where_the_state_is(
    house, capsys, monkeypatch, number
) -> None:
    fail_in_round(monkeypatch, number, KeyboardInterrupt())
    assert house.predict() == 130
    error = capsys.readouterr().err
    assert error.startswith("interrupted at once; ")
    assert ("--resume" in error) is (number > 1)
    assert house.run.exists() is (number > 1)


def test_an_interruption_before_the_first_round_leaves_nothing(house, capsys, monkeypatch) -> None:
    real = rounds.make_logger

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(rounds, "make_logger", interrupted)
    assert house.predict() == 130
    assert capsys.readouterr().err.startswith("interrupted; ")
    assert not house.run.exists()


def test_a_run_killed_after_its_last_round_keeps_what_that_found(house: House) -> None:
    assert house.predict() == 0
    whole = json.loads((house.run / "summary.json").read_text())
    (house.run / "summary.json").unlink()
    status = json.loads((house.run / "status.json").read_text())
    del status["last"]  # it was killed between checkpoint and status
    (house.run / "status.json").write_text(json.dumps(status))
    assert house.predict("--resume") == 0
    summary = json.loads((house.run / "summary.json").read_text())
    assert summary["results"]["last"] == whole["results"]["last"]


@pytest.mark.parametrize(("allowed", "code"), [(0, 1), (1, 1), (2, 0)])
def test_updates_that_are_not_finite_stop_the_training(
    house: House,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    allowed: int,
    code: int,
) -> None:
    """One in each of the first two rounds."""
    real = PredictorTrainer.round

    def bad(trainer: PredictorTrainer) -> dict[str, float]:
        return {**real(trainer), "skipped_updates": float(trainer.rounds <= 2)}

    monkeypatch.setattr(PredictorTrainer, "round", bad)
    assert house.predict("--set", f"learning.max_skipped_updates={allowed}") == code
    last = capsys.readouterr().err.splitlines()[-1]
    count = min(allowed + 1, 2)
    assert f"{count} updates up to round {count} were skipped" in last
    assert f"learning.max_skipped_updates allows {allowed}" in last
    assert house.status()["state"] == ("failed" if code else "finished")
    assert (house.run / "not_finite.pt").exists() == bool(code)
    assert (house.run / "checkpoints" / "best.pt").exists() != bool(code)
    assert load_checkpoint(house.run / "not_finite.pt")["training_step"] == count if code else True


@pytest.mark.parametrize("number", [1, 2])
def test_out_of_memory_is_one_line(house: House, refused, monkeypatch, number: int) -> None:
    fail_in_round(monkeypatch, number, torch.OutOfMemoryError("CUDA out of memory"))
    assert "prediction.batch_size" in refused(house.predict, code=1)
    assert house.run.exists() == (number == 2)


def test_metrics_go_to_the_writers_that_are_asked_for(house: House) -> None:
    assert house.predict("--set", "logging.writers=[]") == 0
    assert list((house.run / "tensorboard").iterdir()) == []
