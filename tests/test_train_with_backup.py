"""The backup script: what it passes on, and how whole trainings end that it starts."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marl_framework.main import main

SCRIPT = Path(__file__).resolve().parents[1] / "train_with_backup.sh"
WAIT = 120  # seconds until a hanging training fails its test
FOREVER = ("--set", "learning.training_steps=1000000", "--set", "logging.checkpoint_interval=0")

# Stands in for Python: records the call, and ends with the given code.
STAND_IN = """
import json, os, sys
if "-c" in sys.argv:
    sys.exit(0)
note = {
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "config": os.environ.get("CONFIG_FILE_PATH"),
    "stdin": sys.stdin.read(),
    "path": os.environ["PYTHONPATH"],
    "process": os.getppid(),
}
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps(note) + "\\n")
sys.exit(int(os.environ.get("CODE", "0")))
"""


class House:
    """A repository with the script, in a folder of a difficult name."""

    def __init__(self, base: Path) -> None:
        self.root = base / "it's a house, #1"
        self.notes = base / "notes"
        self.elsewhere = base / "else where"
        self.elsewhere.mkdir()
        self.root.mkdir()
        shutil.copy(SCRIPT, self.root)
        self.runs = self.root / "runs"
        self.history = self.root / "training_history"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "NOTES": str(self.notes),
        }

    def install(self, folder: Path, command: str) -> None:
        folder.mkdir(parents=True)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        python.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.root / SCRIPT.name), *arguments],
            cwd=self.elsewhere,
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def train(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate("typed", timeout=WAIT)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def calls(self) -> list[dict[str, object]]:
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines()]


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A repository whose Python is a stand-in."""
    house = House(tmp_path)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    house.install(house.root / ".venv" / "bin", f'"{tmp_path}/stand_in.py"')
    return house


@pytest.fixture
def real(tmp_path: Path) -> House:
    """A repository that trains."""
    house = House(tmp_path)
    house.install(house.root / ".venv" / "bin", "")
    for folder in ("marl_framework", "params"):
        (house.root / folder).symlink_to(SCRIPT.parent / folder)
    params = tmp_path / "on_cpu.yaml"
    params.write_text("extends: params_test.yaml\ncompute:\n  device: cpu\n")
    house.environment |= {"CONFIG_FILE_PATH": str(params)}
    return house


def test_the_name_and_the_options_reach_main(house: House) -> None:
    process = house.start("t.1_a-B", "--config", "fast", "--set", "a.b=c d")
    assert process.communicate(timeout=WAIT) == ("", "")
    quoted = str(house.runs).replace("'", "''")
    (call,) = house.calls()
    assert call["arguments"] == [
        *("-Pu", "-m", "marl_framework.main", f"--set=logging.directory='{quoted}'"),
        *("--config", "fast", "--set", "a.b=c d", "--run-name=t.1_a-B", "--archive-earlier"),
    ]


def test_stays_in_the_folder_of_the_caller_and_asks_nothing(house: House) -> None:
    house.train("t", CONFIG_FILE_PATH="mine/params.yaml", PYTHONPATH="extra")
    (call,) = house.calls()
    assert call["folder"] == str(house.elsewhere)
    assert call["config"] == "mine/params.yaml"
    assert call["path"] == f"{house.root}:extra"
    assert call["stdin"] == ""
    assert list(house.elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "a b", "a/b", "../t", "a\nb", "é", "$(id)", "*"])
def test_a_name_reaches_main_as_it_is(house: House, name: str) -> None:
    assert house.train(name).returncode == 0
    (call,) = house.calls()
    assert f"--run-name={name}" in call["arguments"]  # type: ignore[operator]


@pytest.mark.parametrize("arguments", [["-t"], ["--set"], ["--resume", "t"], ["--set", "a.b=1"]])
def test_an_option_in_place_of_the_name_is_one_line_and_code_2(house, arguments) -> None:
    done = house.train(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: run name '{arguments[0]}'")
    assert house.calls() == []


def test_no_name_or_a_second_name_is_an_error(house: House) -> None:
    done = house.train()
    assert (done.returncode, done.stderr[:13]) == (2, "error: usage:")
    for option in ("--run-name=b", "--run-name"):
        done = house.train("a", option, "b")
        assert done.returncode == 2
        assert "--run-name" in done.stderr
    assert house.calls() == []


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_before_the_name_is_the_scripts_own(house: House, option: str) -> None:
    done = house.train(option)
    assert (done.returncode, done.stdout[:6], done.stderr) == (0, "usage:", "")
    assert house.calls() == []


@pytest.mark.parametrize("code", [1, 2, 77, 130])
def test_the_exit_code_is_that_of_the_training(house: House, code: int) -> None:
    assert house.train("t", CODE=str(code)).returncode == code


def test_no_shell_stands_between_caller_and_training(house: House) -> None:
    process = house.start("t")
    process.communicate(timeout=WAIT)
    (call,) = house.calls()
    assert call["process"] == os.getpid()


def test_the_active_environment_serves_where_there_is_no_venv(house: House, tmp_path: Path) -> None:
    shutil.rmtree(house.root / ".venv")
    house.install(tmp_path / "active", f'"{tmp_path}/stand_in.py"')
    assert house.train("t", PATH=f"{tmp_path / 'active'}:/usr/bin:/bin").returncode == 0
    assert len(house.calls()) == 1


def test_no_python_with_pytorch_is_one_line_and_code_2(house: House, tmp_path: Path) -> None:
    shutil.rmtree(house.root / ".venv")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "env", "readlink", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    done = house.train("t", PATH=str(tools))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "make venv" in done.stderr


def test_a_link_to_the_script_finds_the_repository(house: House, tmp_path: Path) -> None:
    link = tmp_path / "train"
    link.symlink_to(house.root / SCRIPT.name)
    subprocess.run([link, "t"], env=house.environment, check=True, capture_output=True)
    (call,) = house.calls()
    assert call["path"] == str(house.root)


def test_a_runs_folder_of_the_caller_is_seen_from_its_folder(house, monkeypatch) -> None:
    old = house.elsewhere / "my runs" / "t"
    old.mkdir(parents=True)
    (old / "result").write_text("old")
    options = ("--config", "params_test.yaml", "--device", "cpu", "--max-episodes", "1")
    house.train("t", "--set", "logging.directory=my runs", *options)
    (call,) = house.calls()
    (_, _, module, *arguments) = call["arguments"]  # type: ignore[misc]
    assert module == "marl_framework.main"
    monkeypatch.chdir(house.elsewhere)
    assert main(arguments) == 0
    (kept,) = (house.elsewhere / "training_history" / "t").iterdir()
    assert (kept / "result").read_text() == "old"
    assert (old / "train.log").exists()
    assert not house.runs.exists()


def test_a_signal_ends_a_training_with_its_state_saved_and_the_earlier_run_kept(real) -> None:
    run = real.runs / "t"
    run.mkdir(parents=True)
    (run / "result").write_text("old")
    process = real.start("t", *FOREVER)
    assert process.stdout is not None
    lines = []
    while not (lines and lines[-1].startswith("step 1/")):
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals all that runs in it
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, err.count("\n")) == (130, 1)
    assert err.startswith("interrupted; the state of the run is in ")
    printed = "".join(lines) + out + err  # err comes last
    assert (run / "checkpoints" / "last.pt").exists()
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    assert (run / "train.log").read_text() == printed
    (kept,) = (real.history / "t").iterdir()
    assert f"The earlier run 't' is now in {kept}" in printed
    assert (kept / "result").read_text() == "old"
    assert [path.name for path in real.runs.iterdir()] == ["t"]
    assert list(real.elsewhere.iterdir()) == []
