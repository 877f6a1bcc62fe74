"""Trainings as submitit's jobs: submitted, pre-empted, requeued and resumed."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from marl_framework.config.errors import ConfigError
from marl_framework.training.slurm import submit
from tests.running import run_main

pytest.importorskip("submitit", reason="submitit is not installed")

WAITS = """
import os, pathlib, signal, sys
file = pathlib.Path(sys.argv[1])
def end(*_):
    file.write_text("saved")
    sys.exit(130)
if file.exists():
    file.write_text("resumed")
    sys.exit(0)
signal.signal(signal.SIGUSR1, end)
print("trains below", os.getppid(), flush=True)
while True:
    signal.pause()
"""


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of submitit's debug jobs
@pytest.mark.parametrize("cluster", ["local", "debug"])
def test_jobs_train_and_fail_apart(cluster: str, tmp_path: Path) -> None:
    write = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('done')"
    commands = {
        "a": [sys.executable, "-c", write, str(tmp_path / "a")],
        "b": [sys.executable, "-c", "raise SystemExit(1)"],
    }
    options = {"partition": "p", "time": 3}
    jobs = submit(commands, tmp_path / "slurm", options, cluster)
    jobs["a"].result()
    assert (tmp_path / "a").read_text() == "done"
    assert "exit code 1" in str(jobs["b"].exception())


def test_a_preempted_job_is_saved_requeued_and_resumed(tmp_path: Path) -> None:
    file = tmp_path / "state"
    command = [sys.executable, "-c", WAITS, str(file)]
    job = submit({"a": command}, tmp_path / "slurm", {}, "local")["a"]
    while not (found := re.search(r"trains below (\d+)", job.stdout() or "")):
        assert job.state == "RUNNING"
    os.kill(int(found[1]), signal.SIGUSR2)  # as Slurm does
    job.result()
    assert file.read_text() == "resumed"


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partitoin"):
        submit({"a": ["true"]}, tmp_path, {"partitoin": "p"}, "local")


def test_the_command_submits_and_returns(tmp_path, monkeypatch, capsys) -> None:
    submitted: dict[str, list[str]] = {}

    def on_this_machine(commands, folder, options):
        submitted.update(commands)
        assert options == {"partition": "p", "time": 5}
        return {name: SimpleNamespace(job_id="1") for name in commands}

    monkeypatch.setattr("marl_framework.training.series.submit", on_this_machine)
    slurm = ("--seeds=3,4", "--launcher=slurm", "--slurm=partition=p,time=5")
    assert run_main(tmp_path, "t", *slurm) == 0
    assert {"t-3", "t-4"} == {*submitted}
    assert all("--resume" in command for command in submitted.values())
    assert "--resume" in capsys.readouterr().out
