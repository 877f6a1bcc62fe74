"""The backup script, driven with a stand-in for Python that plays the training."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marl_framework.runs.files import RunLock

SCRIPT = Path(__file__).resolve().parents[1] / "train_with_backup.sh"
WAIT = 20  # seconds until a hanging script fails its test

# Stands in for `python -Pu -m marl_framework.main …` alone, not for the history: notes each
# call, refuses a configuration named "bad", makes the run folder, and ends with the code or at
# the signal it is told.
STAND_IN = """
import json, os, signal, sys, yaml
arguments = sys.argv[1:]
if "-c" in arguments:
    sys.exit(0)
if arguments[:3] == ["-P", "-m", "marl_framework.history"]:
    os.environ["PYTHONPATH"] = os.environ["REPOSITORY"]
    os.execv(sys.executable, [sys.executable, *arguments])
assert arguments[:3] == ["-Pu", "-m", "marl_framework.main"], arguments
options = arguments[3:]
note = {
    "options": options,
    "folder": os.getcwd(),
    "config": os.environ.get("CONFIG_FILE_PATH"),
    "stdin": sys.stdin.read() if "--read" in options else None,
    "path": os.environ["PYTHONPATH"],
}
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps(note) + "\\n")
if "--check" in options:
    sys.exit(2 if "bad" in options else 0)
settings = [o.removeprefix("--set=") for o in options if "logging.directory=" in o]
folder = yaml.safe_load(settings[-1].split("=", 1)[1])  # main reads it as YAML
run = os.path.join(folder, options[options.index("--run-name") + 1])
if "--no-folder" not in options:
    os.makedirs(run, exist_ok="--resume" in options)
    open(os.path.join(run, "result"), "w").write("new")
print("spoken", flush=True)
print("warned", file=sys.stderr, flush=True)
if "--await" in options:
    def stop(number, frame):
        os.write(1, f"stopped by {signal.Signals(number).name}\\n".encode())  # print may be busy
        sys.exit(42)
    signal.signal(signal.SIGTERM, stop)
    try:
        print("ready", flush=True)
        while True:
            signal.pause()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(43)
sys.exit(int(os.environ.get("CODE", "0")))
"""


class House:
    """A repository with the script and the stand-in, in a folder of a difficult name."""

    def __init__(self, base: Path) -> None:
        self.root = base / "it's a: house #1"
        self.notes = base / "notes"
        self.elsewhere = base / "else where"
        self.elsewhere.mkdir()
        self.root.mkdir()
        shutil.copy(SCRIPT, self.root)
        self.install(self.root / ".venv" / "bin")
        self.runs = self.root / "runs"
        self.history = self.root / "training_history"
        self.environment = {
            "PATH": os.environ["PATH"],
            "NOTES": str(self.notes),
            "REPOSITORY": str(SCRIPT.parent),
        }

    def install(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "stand_in.py").write_text(STAND_IN)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/stand_in.py" "$@"\n')
        python.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.root / SCRIPT.name), *arguments],
            cwd=self.elsewhere,
            env={**self.environment, **environment},
            stdin=subprocess.PIPE if "--read" in arguments else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def train(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate("yes" if "--read" in arguments else None, timeout=WAIT)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def calls(self) -> list[dict[str, object]]:
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    def earlier_run(self, name: str) -> Path:
        run = self.runs / name
        run.mkdir(parents=True)
        (run / "result").write_text("old")
        return run


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_trains_under_the_name_and_keeps_the_log(house: House) -> None:
    done = house.train("t.1_a-B", "--config", "fast", "--set", "a.b=c d")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["spoken", "warned"]
    quoted = str(house.runs).replace("'", "''")
    directory = ["--set", f"logging.directory='{quoted}'"]
    passed_on = [*directory, "--config", "fast", "--set", "a.b=c d"]
    check, training = house.calls()
    assert check["options"] == ["--check", *passed_on]
    assert training["options"] == [*passed_on, "--run-name", "t.1_a-B"]
    assert (house.runs / "t.1_a-B" / "train.log").read_text() == "spoken\nwarned\n"
    assert [path.name for path in house.runs.iterdir()] == ["t.1_a-B"]
    assert not house.history.exists()


def test_stays_in_the_folder_of_the_caller_and_asks_nothing(house: House) -> None:
    house.train("t", "--read", CONFIG_FILE_PATH="mine/params.yaml", PYTHONPATH="extra")
    for call in house.calls():
        assert call["folder"] == str(house.elsewhere)
        assert call["config"] == "mine/params.yaml"
        assert call["path"] == f"{house.root}:extra"
    assert house.calls()[1]["stdin"] == ""
    assert list(house.elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-t", "--set", "a b", "a/b", "../t", "a\nb", "é", "$(id)", "*"]
)
def test_a_bad_name_is_one_line_and_code_2(house: House, name: str) -> None:
    before = sorted(house.root.rglob("*"))
    done = house.train(name)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: run name ")
    assert house.calls() == []
    assert sorted(house.root.rglob("*")) == before


def test_no_name_or_a_second_name_is_an_error(house: House) -> None:
    done = house.train()
    assert (done.returncode, done.stderr[:13]) == (2, "error: usage:")
    for option in ("--run-name=b", "--run-name"):
        done = house.train("a", option, "b")
        assert done.returncode == 2
        assert "--run-name" in done.stderr
    assert house.calls() == []


def test_an_earlier_run_moves_to_the_history_each_time(house: House) -> None:
    house.earlier_run("t")
    house.earlier_run("other")
    for count in (1, 2, 3):
        assert house.train("t").returncode == 0
        kept = sorted((house.history / "t").iterdir())
        assert len(kept) == count  # in one second too: no copy replaces another
    texts = [(path / "result").read_text() for path in kept]
    assert sorted(texts) == ["new", "new", "old"]
    assert (house.runs / "t" / "result").read_text() == "new"
    assert (house.runs / "other" / "result").read_text() == "old"


def test_what_moves_keeps_what_is_known_of_it(house: House) -> None:
    run = house.earlier_run("t")
    (run / "status.json").write_text('{"state": "training", "training_step": 6}')
    done = house.train("t")
    (kept,) = (house.history / "t").iterdir()
    assert f"The earlier run 't' is now in {kept}" in done.stdout
    known = json.loads((kept / "metadata.json").read_text())
    assert (known["name"], known["state"], known["training_step"]) == ("t", "killed", 6)


def test_resuming_moves_nothing_and_continues_the_log(house: House) -> None:
    run = house.earlier_run("t")
    (run / "train.log").write_text("before\n")
    for _ in range(2):
        assert house.train("t", "--resume").returncode == 0
    assert "--resume" in house.calls()[1]["options"]
    assert (run / "train.log").read_text() == "before\n" + 2 * "spoken\nwarned\n"
    assert not house.history.exists()
    assert house.train("new", "--resume").returncode == 0
    assert (house.runs / "new" / "train.log").exists()


def test_a_run_that_is_being_trained_is_not_moved(house: House) -> None:
    run = house.earlier_run("t")
    lock = RunLock(run)
    done = house.train("t")
    lock.release()
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "under way" in done.stderr
    assert sorted(path.name for path in house.root.iterdir()) == [".venv", "runs", SCRIPT.name]
    assert [path.name for path in house.runs.iterdir()] == ["t"]
    assert len(house.calls()) == 1


def test_a_refused_training_leaves_the_log_of_another_alone(house: House) -> None:
    run = house.earlier_run("t")
    (run / "train.log").write_text("another's\n")
    assert house.train("t", "--resume", CODE="2").returncode == 2
    assert (run / "train.log").read_text() == "another's\n"
    assert [path.name for path in house.runs.iterdir()] == ["t"]


def test_a_refused_configuration_moves_nothing(house: House) -> None:
    run = house.earlier_run("t")
    done = house.train("t", "--config", "bad")
    assert done.returncode == 2
    assert len(house.calls()) == 1
    assert (run / "result").read_text() == "old"
    assert [path.name for path in house.runs.iterdir()] == ["t"]
    assert not house.history.exists()


def test_a_mere_check_moves_nothing(house: House) -> None:
    run = house.earlier_run("t")
    assert house.train("t", "--check").returncode == 0
    assert (run / "result").read_text() == "old"
    assert not house.history.exists()


@pytest.mark.parametrize("code", [1, 77])
def test_exit_code_and_log_of_a_failed_training_are_kept(house: House, code: int) -> None:
    done = house.train("t", CODE=str(code))
    assert done.returncode == code
    assert (house.runs / "t" / "train.log").read_text() == "spoken\nwarned\n"


def test_without_a_run_folder_the_log_stays_and_is_named(house: House) -> None:
    done = house.train("t", "--no-folder", CODE="5")
    assert done.returncode == 5
    (log,) = house.runs.iterdir()
    assert done.stderr == f"The log is {log}\n"
    assert log.read_text() == "spoken\nwarned\n"


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGTERM, 42, "stopped by SIGTERM"),
        (signal.SIGHUP, 42, "stopped by SIGTERM"),
        (signal.SIGINT, 43, "interrupted"),
    ],
)
def test_a_signal_reaches_the_training_and_its_end_is_awaited(
    house: House, number: signal.Signals, code: int, word: str
) -> None:
    process = house.start("t", "--await")
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(3)]
    assert sorted(lines) == ["ready", "spoken", "warned"]
    if number == signal.SIGTERM:
        process.send_signal(number)
    else:  # a terminal signals all that runs in it, the writer of the log too
        os.killpg(process.pid, number)
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out.strip(), err) == (code, word, "")
    assert (house.runs / "t" / "train.log").read_text().splitlines() == [*lines, word]


def test_a_killed_training_gives_the_code_of_its_signal(house: House) -> None:
    process = house.start("t", "--await")
    assert process.stdout is not None
    while process.stdout.readline().strip() != "ready":
        pass
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (training,) = [
        int(pid) for pid in children if b"stand_in.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(training, signal.SIGKILL)
    process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGKILL
    assert (house.runs / "t" / "train.log").exists()


@pytest.mark.parametrize("form", [["--set", "{}"], ["--set={}"]])
def test_a_runs_folder_of_the_caller_is_used_as_given(house: House, form: list[str]) -> None:
    options = [part.format("logging.directory=my runs") for part in form]
    old = house.elsewhere / "my runs" / "t"
    old.mkdir(parents=True)
    assert house.train("t", *options).returncode == 0
    assert house.calls()[1]["options"] == [*options, "--run-name", "t"]
    assert (old / "train.log").exists()
    assert len(list((house.elsewhere / "training_history" / "t").iterdir())) == 1
    assert not house.runs.exists()


def test_the_active_environment_serves_where_there_is_no_venv(house: House, tmp_path: Path) -> None:
    shutil.rmtree(house.root / ".venv")
    house.install(tmp_path / "active")
    assert house.train("t", PATH=f"{tmp_path / 'active'}:/usr/bin:/bin").returncode == 0
    assert len(house.calls()) == 2


def test_no_python_with_pytorch_is_one_line_and_code_2(house: House, tmp_path: Path) -> None:
    shutil.rmtree(house.root / ".venv")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "env", "readlink", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    run = house.earlier_run("t")
    done = house.train("t", PATH=str(tools))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "make venv" in done.stderr
    assert run.exists()


def test_an_unwritable_history_stops_before_the_training(house: House) -> None:
    run = house.earlier_run("t")
    house.history.write_text("a file, not a folder")
    done = house.train("t")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert (run / "result").read_text() == "old"
    assert [path.name for path in house.runs.iterdir()] == ["t"]
    assert len(house.calls()) == 1


def test_a_link_to_the_script_finds_the_repository(house: House, tmp_path: Path) -> None:
    link = tmp_path / "train"
    link.symlink_to(house.root / SCRIPT.name)
    subprocess.run([link, "t"], env=house.environment, check=True, capture_output=True)
    assert (house.runs / "t" / "result").read_text() == "new"
