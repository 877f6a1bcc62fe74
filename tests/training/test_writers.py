from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.main import main
from marl_framework.training import writers
from marl_framework.training.logging import WANDB, TrainingLogger
from marl_framework.training.writers import WandbWriter

STUB = """
import json, pathlib

class Error(Exception):
    pass

class Image:
    def __init__(self, pixels):
        self.shown = list(pixels.shape)

class Histogram:
    def __init__(self, np_histogram):
        self.shown = [list(map(float, part)) for part in np_histogram]

class Run:
    def __init__(self, settings):
        self.file = pathlib.Path(settings["dir"]) / "wandb.jsonl"
        self.write(settings)

    def write(self, entry):
        with self.file.open("a") as file:
            file.write(json.dumps(entry, default=lambda value: value.shown) + "\\n")

    def log(self, values, step):
        if (self.file.parent / "offline").exists():
            raise Error("no connection")
        self.write({"step": step, **values})

    def finish(self):
        self.write({"finished": True})
        if self in active:
            active.remove(self)

active = []

def init(**settings):
    if settings["name"] == "stranger":
        raise Error("no API key")
    if active and settings.get("reinit") != "create_new":
        return active[-1]
    active.append(Run(settings))
    return active[-1]
"""
SET = ["--set", "logging.writers=[tensorboard, wandb]"]


@pytest.fixture
def _stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "wandb.py").write_text(STUB, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "stub")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.chdir(tmp_path)


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "wandb.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("_stub")
def test_metrics_and_histograms_reach_wandb(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mapping")
    more = {WANDB: WandbWriter(tmp_path, {"networks": {"gamma": 0.9}})}
    bins = {"altitudes": (5.0, 10.0)}
    with TrainingLogger(None, histogram_interval=1, bin_values=bins, more=more) as logger:
        logger.log(1, {"return": torch.tensor(0.5)}, {"altitudes": torch.tensor([3, 1])})
        logger.write(1, {"validation_f1": 0.25})
    start, *logged, end = entries(tmp_path)
    assert start["project"] == "mapping"
    assert start["name"] == tmp_path.name
    assert start["config"] == {"networks": {"gamma": 0.9}}
    assert {"step": 1, "return/episode": 0.5} in logged
    assert {"step": 1, "validation/f1": 0.25} in logged
    assert {"step": 1, "policy/altitudes": [[3.0, 1.0], [2.5, 7.5, 12.5]]} in logged
    assert end == {"finished": True}


@pytest.mark.usefixtures("_stub")
def test_a_training_writes_to_both_and_a_resumed_one_goes_on_under_the_same_id(tmp_path) -> None:
    first = ["--config", "params_test", "--device", "cpu", "--run-name", "t", *SET]
    assert main([*first, "--set", "learning.training_steps=2"]) == 0
    more = ["--resume", "--allow-changed", "learning.training_steps"]
    assert main([*first, *more]) == 0
    run = tmp_path / "runs" / "t"
    assert list((run / "tensorboard").iterdir())
    found = entries(run)
    starts = [entry for entry in found if "project" in entry]
    assert len(starts) == 2
    assert starts[0]["id"] == starts[1]["id"]
    assert {start["project"] for start in starts} == {"marl_framework"}
    assert {entry["step"] for entry in found if "return/episode" in entry} == {1, 2, 3, 4}
    assert any("figures/mission" in entry for entry in found)


@pytest.mark.usefixtures("_stub")
def test_a_lost_connection_ends_that_log_alone(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "offline").touch()
    more = {WANDB: WandbWriter(tmp_path, {})}
    with TrainingLogger(tmp_path / "events", report=lines.append, more=more) as logger:
        for step in (1, 2):
            assert logger.log(step, {"return": 1.0}) == {"return": 1.0}
    warning = f"warning: {WANDB}'s log cannot be written: no connection; "
    assert lines == [f"{warning}the training continues without this log"]
    assert (tmp_path / "events").exists()


@pytest.mark.usefixtures("_stub")
def test_what_keeps_wandb_from_starting_is_one_line(tmp_path, capsys) -> None:
    assert main(["--config", "params_test", "--device", "cpu", "--run-name", "stranger", *SET]) == 2
    assert "no API key; log in with `wandb login`" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


def test_without_wandb_it_says_what_to_install(tmp_path, monkeypatch, refused) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    for check in ([], ["--check"]):
        given = ["--config", "params_test", "--device", "cpu", "--run-name", "t", *SET, *check]
        assert "pip install 'marl_framework[wandb]'" in refused(main, given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["[mlflow]", "wandb", "[wandb, wandb]"])
def test_bad_writers_are_refused(value: str) -> None:
    assert load_config("params.yaml").logging.writers == ("tensorboard",)
    with pytest.raises(ConfigError, match=r"logging\.writers"):
        load_config("params_test", [f"logging.writers={value}"])
