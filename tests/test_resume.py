"""Runs that stop anywhere and go on: the same weights, and nothing lost."""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from marl_framework.config.errors import ConfigError
from marl_framework.runs.lock import RunLock, is_locked
from marl_framework.runs.process import this_process
from marl_framework.training.trainer import Trainer
from tests.running import results, run_main
from tests.soaking import in_soak
from tests.training.steps import at_step

# Intervals that no stop falls in with, so that half-filled ones must survive too.
SCHEDULE = (
    "learning.training_steps=8",
    "logging.scalar_interval=3",
    "logging.histogram_interval=5",
    "logging.checkpoint_interval=2",
    "evaluation.interval=5",
    "evaluation.missions=2",
    "compute.device=cpu",
)
WEIGHTS = ("actor", "critic", "target_critic")


class Crash(BaseException):
    """Stands in for the end of the machine."""


class House:
    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = base / "runs"
        self._monkeypatch = monkeypatch

    def train(self, name: str, *options: str, sets: tuple[str, ...] = ()) -> int:
        return run_main(self.runs.parent, name, *options, sets=(*SCHEDULE, *sets))

    def stop_in(self, step: int, how: Callable[[], None]) -> None:
        """Let something happen in the middle of a training step, once."""
        real = Trainer.make_steps

        def happen(_: Trainer) -> None:
            self._monkeypatch.setattr(Trainer, "make_steps", real)
            how()

        self._monkeypatch.setattr(Trainer, "make_steps", at_step(step, happen))

    def crash(self, name: str, step: int, *options: str, sets: tuple[str, ...] = ()) -> None:
        self.stop_in(step, Mock(side_effect=Crash))
        with pytest.raises(Crash):
            self.train(name, *options, sets=sets)

    def checkpoint(self, name: str, file: str = "last.pt"):
        return torch.load(self.runs / name / "checkpoints" / file, weights_only=True)

    def results(self, name: str):
        return results(self.runs / name)

    def checkpoints(self, name: str) -> list[str]:
        return sorted(os.listdir(self.runs / name / "checkpoints"))

    def scalars(self, name: str):
        log = EventAccumulator(str(self.runs / name / "tensorboard"), {"scalars": 0})
        log.Reload()
        kept = [tag for tag in log.Tags()["scalars"] if not tag.startswith(("time/", "hardware/"))]
        return {tag: [(e.step, e.value) for e in log.Scalars(tag)] for tag in kept}

    def assert_same(self, first: str, second: str) -> None:
        assert self.results(first) == self.results(second)
        for file in ("last.pt", "best.pt"):
            a, b = self.checkpoint(first, file), self.checkpoint(second, file)
            for name in WEIGHTS:
                assert all(torch.equal(a[name][key], b[name][key]) for key in a[name])
            assert torch.equal(a["generators"]["missions"], b["generators"]["missions"])
            assert str(a["actor_optimizer"]["state"]) == str(b["actor_optimizer"]["state"])
            for name in ("training_step", "episodes", "best", "evaluations_without_better"):
                assert a[name] == b[name]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    # TensorBoard reads files by name: second, process, count. Runs of one process in one second
    # are in order as long as the count keeps its number of digits.
    counter = event_file_writer.AtomicCounter(100)
    monkeypatch.setattr(event_file_writer, "_global_uid", counter)
    return House(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    base = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert House(base, monkeypatch).train("whole") == 0
    # TensorBoard reads its files in the order of their names, which count seconds, and what goes on
    # with a copy of this run comes later.
    (events,) = (base / "runs" / "whole" / "tensorboard").iterdir()
    kind, second, rest = re.split(r"tfevents\.(\d+)\.", events.name)
    events.rename(events.with_name(f"{kind}tfevents.{int(second) - 60}.{rest}"))
    return base / "runs" / "whole"


def beside(house: House, whole: Path) -> None:
    shutil.copytree(whole, house.runs / "whole")


def test_stops_and_crashes_change_nothing(house: House, whole: Path, capsys) -> None:
    beside(house, whole)
    house.crash("t", 1)  # leaves nothing: the name stays free
    assert not (house.runs / "t").exists()
    house.stop_in(4, lambda: signal.raise_signal(signal.SIGTERM))
    assert house.train("t", "--resume") == 130  # starts it where there is none
    assert house.checkpoint("t")["training_step"] == 4
    house.crash("t", 6, "--resume")
    assert house.checkpoint("t")["training_step"] == 5  # the best so far
    house.stop_in(8, lambda: signal.raise_signal(signal.SIGINT))
    assert house.train("t", "--resume") == 0
    house.assert_same("t", "whole")
    assert house.scalars("t") == house.scalars("whole")
    noted = json.loads((house.runs / "t" / "environment.json").read_text())
    assert [entry["training_step"] for entry in noted["resumed"]] == [4, 5]


DIFFERENT = (
    "experiment.missions.n_agents=[2, 4]",
    "experiment.constraints.budget=[3, 5]",
    "experiment.constraints.cost.limit=[12, 30]",
    "experiment.uav.crash_rate=[0, 0.2]",
    "environment.num_envs=6",
    "evaluation.missions=6",
)


@pytest.mark.parametrize("algorithm", ["sac", *in_soak("mappo", "coma", "qmix")])
def test_missions_that_differ_go_on_too(house: House, algorithm: str) -> None:
    sets = (*DIFFERENT, f"experiment.algorithm={algorithm}", "learning.clip_ratio=0.2")
    if algorithm in ("sac", "qmix"):  # the ring is overwritten before the crash
        sets += ("logging.save_replay=true", "learning.replay_size=500")
    assert house.train("whole", sets=sets) == 0
    house.crash("t", 6, sets=sets)
    assert house.train("t", "--resume", sets=sets) == 0
    assert house.results("t") == house.results("whole")


def test_a_replay_that_is_not_saved_is_filled_again(house: House, capsys) -> None:
    sets = ("experiment.algorithm=sac",)
    house.crash("t", 6, sets=sets)
    assert "replay: 100,000 transitions" in capsys.readouterr().out
    assert house.train("t", "--resume", sets=sets) == 0
    (line,) = [text for text in capsys.readouterr().out.splitlines() if "replay:" in text]
    assert "filled again" in line
    assert "replay" not in house.checkpoint("t")


def test_a_finished_run_is_left_as_it_is(house: House, whole: Path, capsys) -> None:
    beside(house, whole)
    before = {p: p.read_bytes() for p in house.runs.rglob("*") if p.is_file()}
    assert house.train("whole", "--resume") == 0
    assert "finished already" in capsys.readouterr().out
    after = {p: p.read_bytes() for p in house.runs.rglob("*") if p.is_file()}
    del before[house.runs / "whole" / ".lock"], after[house.runs / "whole" / ".lock"]
    assert before == after


def test_a_lengthened_run_that_is_killed_goes_on_to_its_end(house: House, whole: Path) -> None:
    beside(house, whole)
    longer = ("learning.training_steps=12",)
    allow = ("--resume", "--allow-changed", "learning.training_steps")
    house.crash("whole", 11, *allow, sets=longer)
    assert house.train("whole", *allow, sets=longer) == 0
    assert house.results("whole")["training_steps"] == 12


def test_an_abandoned_change_is_gone_from_the_configuration(house: House, whole: Path) -> None:
    beside(house, whole)
    file = house.runs / "whole" / "config.yaml"
    longer = ("learning.training_steps=12",)
    allow = ("--resume", "--allow-changed", "learning.training_steps")
    house.crash("whole", 9, *allow, sets=longer)  # before its first checkpoint
    assert "training_steps: 12" in file.read_text()
    assert house.train("whole", "--resume") == 0
    assert house.results("whole")["training_steps"] == 8
    assert "training_steps: 8" in file.read_text()


def test_a_run_killed_before_its_summary_gets_it(house: House, whole: Path) -> None:
    beside(house, whole)
    shutil.copytree(whole, house.runs / "t")
    (house.runs / "t" / "summary.json").unlink()
    assert house.train("t", "--resume") == 0
    house.assert_same("t", "whole")


@pytest.mark.parametrize("reached", ["nothing", "no configuration", "no checkpoint"])
def test_a_start_killed_early_is_taken_up(house: House, whole: Path, reached: str) -> None:
    beside(house, whole)
    shutil.copytree(whole, house.runs / "t")
    shutil.rmtree(house.runs / "t" / "checkpoints")
    for file in ("summary.json", "status.json"):
        (house.runs / "t" / file).unlink()
    if reached != "no checkpoint":
        (house.runs / "t" / "config.yaml").unlink()
        (house.runs / "t" / ".config.yaml.17.tmp").write_text("half")
    if reached == "nothing":
        shutil.rmtree(house.runs / "t")
        (house.runs / "t").mkdir()
    assert house.train("t", "--resume") == 0
    house.assert_same("t", "whole")
    assert house.scalars("t") == house.scalars("whole")
    assert not list((house.runs / "t").glob("*.tmp"))


def test_a_folder_that_is_no_run_is_not_touched(house: House, refused) -> None:
    (house.runs / "t").mkdir(parents=True)
    (house.runs / "t" / "thesis.txt").write_text("precious")
    assert str(house.runs / "t") in refused(house.train, "t", "--resume")
    assert os.listdir(house.runs / "t") == ["thesis.txt"]


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])  # twice, where two names are one file


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(
    house: House, whole: Path, capsys
) -> None:
    beside(house, whole)
    house.crash("t", 7)
    assert house.checkpoints("t")[-2:] == ["step-00000005.pt", "step-00000006.pt"]
    spoil(house.runs / "t" / "checkpoints" / "step-00000006.pt")
    capsys.readouterr()
    assert house.train("t", "--resume") == 0
    warned = capsys.readouterr().err.splitlines()
    assert len(warned) == 2
    assert "step-00000006.pt" in warned[0]
    assert warned[1].endswith("step-00000005.pt, training step 5")
    house.assert_same("t", "whole")
    assert "step-00000006.pt.damaged" in house.checkpoints("t")


def test_only_damaged_checkpoints_are_an_error_and_stay(house: House, capsys) -> None:
    house.crash("t", 3)
    for path in (house.runs / "t" / "checkpoints").iterdir():
        spoil(path)
    before = {p: p.read_bytes() for p in (house.runs / "t" / "checkpoints").iterdir()}
    capsys.readouterr()
    assert house.train("t", "--resume") == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert "no checkpoint in this folder can be read" in errors[0]
    assert {p: p.read_bytes() for p in (house.runs / "t" / "checkpoints").iterdir()} == before


def test_the_last_few_checkpoints_and_the_best_are_kept(house: House) -> None:
    sets = ("logging.checkpoint_interval=1", "logging.checkpoints_kept=2")
    assert house.train("t", sets=sets) == 0
    names = ["best.pt", "last.pt", "step-00000007.pt", "step-00000008.pt"]
    assert house.checkpoints("t") == names
    folder = house.runs / "t" / "checkpoints"
    assert os.path.samefile(folder / "last.pt", folder / "step-00000008.pt")
    best = house.checkpoint("t", "best.pt")
    assert best["training_step"] == house.results("t")["best"]["training_step"]


def test_a_changed_configuration_is_refused_by_key_unless_allowed(house: House, refused) -> None:
    house.crash("t", 5)
    changed = ("learning.gamma=0.5", "learning.actor.learning_rate=0.25")
    train = partial(house.train, sets=changed)
    error = refused(train, "t", "--resume", "--allow-changed", "learning.gamma")
    assert "learning.actor.learning_rate 0.001 -> 0.25" in error
    assert "learning.gamma" not in error
    allow = ("--allow-changed", "learning.actor.learning_rate", "--allow-changed", "learning.gamma")
    assert house.train("t", "--resume", *allow, sets=changed) == 0
    state = house.checkpoint("t")
    assert state["actor_optimizer"]["param_groups"][0]["lr"] == 0.25
    assert state["config"]["learning"]["gamma"] == 0.5
    assert "gamma: 0.5" in (house.runs / "t" / "config.yaml").read_text()
    noted = json.loads((house.runs / "t" / "environment.json").read_text())["resumed"][0]
    assert noted["changed"] == {"learning.gamma": 0.5, "learning.actor.learning_rate": 0.25}


def test_a_finished_run_takes_up_an_allowed_change(house: House, whole: Path, capsys) -> None:
    beside(house, whole)
    changed, key = ("evaluation.missions=3",), "evaluation.missions"
    assert house.train("whole", "--resume", "--allow-changed", key, sets=changed) == 0
    assert house.train("whole", "--resume", sets=changed) == 0
    assert house.checkpoint("whole")["config"]["evaluation"]["missions"] == 3


def test_a_finished_run_goes_on_for_longer(house: House, whole: Path) -> None:
    beside(house, whole)
    longer = ("learning.training_steps=10",)
    assert house.train("t", sets=longer) == 0
    allow = ("--allow-changed", "learning.training_steps")
    assert house.train("whole", "--resume", *allow, sets=longer) == 0
    # The final step of the shorter run was validated as its last; the weights do not notice.
    assert house.results("whole")["weights_sha256"] == house.results("t")["weights_sha256"]


@pytest.mark.parametrize("setting", ["environment.x_dim=40", "observation.budget=false"])
def test_another_lattice_or_channel_set_is_a_clear_error(house, refused, setting) -> None:
    house.crash("t", 5)
    before = house.checkpoints("t")
    train, key = partial(house.train, sets=(setting,)), setting.partition("=")[0]
    assert key in refused(train, "t", "--resume")
    assert "actor does not fit" in refused(train, "t", "--resume", "--allow-changed", key)
    assert house.checkpoints("t") == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--resume", "--allow-changed", "learning.gama"], "learning.gamma"),
        (["--allow-changed", "learning.gamma"], "--resume"),
    ],
)
def test_bad_options_are_one_line(house: House, refused, options: list[str], named: str) -> None:
    assert named in refused(house.train, "t", *options)
    assert not house.runs.exists() or os.listdir(house.runs) == []


def test_without_validations_the_last_checkpoint_is_the_best_at_the_end_alone(house: House) -> None:
    sets = ("evaluation.interval=0", "learning.training_steps=4")
    house.stop_in(2, lambda: signal.raise_signal(signal.SIGINT))
    assert house.train("t", sets=sets) == 130
    assert "best.pt" not in house.checkpoints("t")
    assert house.train("t", "--resume", sets=sets) == 0
    assert house.checkpoint("t", "best.pt")["training_step"] == 4
    sets = ("evaluation.interval=0", "learning.training_steps=8")
    house.crash("t", 7, "--resume", "--allow-changed", "learning.training_steps", sets=sets)
    assert "best.pt" not in house.checkpoints("t")


def test_patience_goes_on_where_it_was(house: House, monkeypatch) -> None:
    flown = {name: torch.ones(4) for name in ("roi_entropy", "f1", "return")}
    monkeypatch.setattr("marl_framework.training.validation.validate", lambda *_: flown)
    sets = ("learning.patience=4", "evaluation.interval=1")
    house.crash("t", 4, sets=sets)
    assert house.train("t", "--resume", sets=sets) == 0
    assert house.results("t")["training_steps"] == 5  # the first is the best, four are not
    assert house.results("t")["finished"]
    assert house.train("t", "--resume", sets=sets) == 0


def test_a_second_training_of_a_name_is_refused(house: House, refused) -> None:
    house.crash("t", 5)
    lock = RunLock(house.runs / "t")
    before = {p: p.stat().st_mtime_ns for p in (house.runs / "t").rglob("*")}
    for options in (("--resume",), ()):
        refused(house.train, "t", *options)
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on "):
        RunLock(house.runs / "t")
    assert {p: p.stat().st_mtime_ns for p in (house.runs / "t").rglob("*")} == before
    file = house.runs / "t" / "status.json"
    status = json.loads(file.read_text())
    status["process"] |= {"boot": "of an earlier start of this host"}  # not yet that of the lock
    file.write_text(json.dumps(status))
    with pytest.raises(ConfigError, match="is in progress; "):
        RunLock(house.runs / "t")
    lock.release()
    assert house.train("t", "--resume") == 0


def test_asking_for_the_state_of_a_run_never_refuses_its_start(tmp_path, monkeypatch) -> None:
    handle, real = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT), fcntl.flock
    real(handle, fcntl.LOCK_SH)  # as `is_locked` does for a moment

    def flock(*arguments: int) -> None:
        try:
            real(*arguments)
        except BlockingIOError:
            real(handle, fcntl.LOCK_UN)
            raise

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        lock = RunLock(tmp_path)
    os.close(handle)
    assert is_locked(tmp_path)
    lock.release()


@pytest.mark.parametrize("state", ["training", "finished"])
def test_without_locks_a_live_training_keeps_its_folder(state, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "no locks here")))
    status = {"state": state, "process": this_process()}
    (tmp_path / "status.json").write_text(json.dumps(status))
    if state == "finished":
        RunLock(tmp_path)
        return
    with pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        RunLock(tmp_path)
    status["process"] = {**this_process(), "started": "0"}  # another had its number
    (tmp_path / "status.json").write_text(json.dumps(status))
    RunLock(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_and_the_run_goes_on_later(
    number: int, house: House, whole: Path, capsys
) -> None:
    beside(house, whole)

    def twice() -> None:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)

    house.stop_in(6, twice)
    assert house.train("t") == 130
    assert house.checkpoint("t")["training_step"] == 5
    error = capsys.readouterr().err
    assert error.startswith("interrupted at once; the state of the run is in ")
    assert (house.runs / "t" / "train.log").read_text().endswith(error)
    status = json.loads((house.runs / "t" / "status.json").read_text())
    assert (status["state"], status["training_step"]) == ("interrupted", 5)
    assert house.train("t", "--resume") == 0
    house.assert_same("t", "whole")
