"""A run whose process is gone is distinguished from one that trains, also after a power cut."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from marl_framework import history
from marl_framework.config.loading import dump_config, load_config
from marl_framework.runs.lock import RunLock
from marl_framework.runs.process import is_alive, start_time, this_process
from marl_framework.training.readiness import runs_in_training

HERE = this_process()
BEFORE = {**HERE, "boot": "of another start of this host"}
REUSED = {**HERE, "started": "1"}  # its number has gone to another process
ELSEWHERE = {**HERE, "host": "elsewhere"}


def test_a_process_is_told_from_others_with_its_number() -> None:
    assert [is_alive(p) for p in (HERE, BEFORE, REUSED, ELSEWHERE)] == [True, False, False, None]
    assert is_alive({}) is None


def test_without_start_times_numbers_tell_whether_a_process_runs() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    unknown = {**HERE, "started": ""}
    others = ({}, {"number": child.pid}, {"number": 1})
    assert [is_alive(unknown | other) for other in others] == [True, False, True]


def test_a_process_that_has_ended_is_gone_before_its_parent_asks() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) == ""
    child.wait()
    assert start_time(child.pid) == ""


RUNS = {
    "alive": ({"process": HERE}, "in training"),
    "cut": ({"process": BEFORE}, "killed"),
    "reused": ({"process": REUSED}, "killed"),
    "elsewhere": ({"process": ELSEWHERE}, "killed, or in training on elsewhere"),
    "former": ({}, "killed"),
    "done": ({"process": BEFORE, "state": "finished"}, "finished"),
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """One run of each kind, none of them locked, as on a file system without locks."""
    for name, (status, _) in RUNS.items():
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        dump_config(load_config("params_test"), run / "config.yaml")
        (run / "status.json").write_text(json.dumps({"state": "training", **status}))
    return tmp_path / "runs"


def test_the_history_tells_them_apart(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (_, state) in RUNS.items():
        assert history.main(["--runs", str(runs), "list", name]) == 0
        steps = "" if state == "finished" else ", 0 training steps"  # it has flown without training
        assert capsys.readouterr().out == f"{name}: {state}{steps}, began None\n"
    lock = RunLock(runs / "elsewhere")
    assert history.main(["--runs", str(runs), "list", "elsewhere"]) == 0
    assert capsys.readouterr().out.startswith("elsewhere: in training, ")
    lock.release()


def test_the_doctor_names_those_to_continue(runs: Path, tmp_path: Path) -> None:
    def found(folder: Path) -> list[str]:
        config = load_config("params_test", [f"logging.directory={folder}"])
        text, fix = runs_in_training(config, torch.device("cpu"))
        assert not fix
        return [name for name in RUNS if f"{name} " in text]

    assert found(tmp_path / "none") == []
    assert found(runs) == ["alive", "cut", "reused", "elsewhere", "former"]
