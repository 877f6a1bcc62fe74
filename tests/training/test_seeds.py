"""Several seeds in a row: a run each, a summary with intervals, and going on where it stopped."""

from __future__ import annotations

import json
import signal
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from scipy.stats import t as student

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.main import main
from marl_framework.runs.log import RunLog
from marl_framework.training import seeds as seeds_module
from marl_framework.training.jobs import train_runs
from marl_framework.training.trainer import Trainer

Train = Callable[..., int]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train two steps of params_test.yaml with several seeds; returns the exit code."""
    monkeypatch.setattr(Trainer, "_draw_mission", lambda *_: None)
    given = ["--config", "params_test.yaml", "--device", "cpu", "--max-episodes", "2"]
    runs = f"logging.directory={tmp_path / 'runs'}"

    def run(seeds: str, *arguments: str, name: str = "t") -> int:
        return main([*given, "--set", runs, "--run-name", name, "--seeds", seeds, *arguments])

    return run


def results(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())["results"]


def test_an_interrupted_series_goes_on_and_is_summed_up(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    real = Trainer.training_step

    def step(trainer: Trainer, timer):
        seed = trainer.config.environment.seed
        if seed == 4 and trainer.algorithm.training_steps == 0:
            signal.raise_signal(signal.SIGTERM)
        return real(trainer, timer)

    runs = tmp_path / "runs"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", step)
        assert train("3,4,5") == 130
    assert sorted(path.name for path in runs.iterdir()) == ["t-3", "t-4"]
    assert results(runs / "t-4")["training_steps"] == 1
    first = (runs / "t-3" / "summary.json").read_bytes()
    capsys.readouterr()
    assert train("3,4,5") == 2  # it never overwrites
    assert "t-3 exists" in capsys.readouterr().err
    assert train("3,4,5", "--resume") == 0
    assert (runs / "t-3" / "summary.json").read_bytes() == first
    found = json.loads((runs / "t-seeds.json").read_text())
    assert found["runs"] == {"t-3": 3, "t-4": 4, "t-5": 5}
    returns = [results(runs / name)["last"]["return"] for name in found["runs"]]
    assert len(set(returns)) == 3
    known = found["metrics"]["last return"]
    assert known["values"] == returns
    low, high = known["interval"]
    error = statistics.stdev(returns) / 3**0.5
    expected = student.interval(0.95, 2, statistics.fmean(returns), error)
    assert (low, high) == pytest.approx(expected, rel=1e-3)
    assert f"last return              {known['mean']:.4f} [{low:.4f}, {high:.4f}]" in (
        capsys.readouterr().out
    )
    logs = [(runs / name / "train.log").read_text() for name in found["runs"]]
    assert all(log.count("done: ") == 1 for log in logs)
    assert all(f"/{name}/" in log for name, log in zip(found["runs"], logs, strict=True))
    assert [log.count("seed ") for log in logs] == [1, 2, 1]  # one line at each start


def test_a_later_seed_joins_the_summary(train: Train, tmp_path: Path) -> None:
    assert train("3") == 0
    summary = tmp_path / "runs" / "t-seeds.json"
    assert train("4") == 0
    assert json.loads(summary.read_text())["runs"] == {"t-3": 3, "t-4": 4}
    assert train("5", "--set", "learning.gamma=0.5") == 0
    assert json.loads(summary.read_text())["runs"] == {"t-5": 5}  # another training
    assert train("6") == 0
    assert json.loads(summary.read_text())["runs"] == {"t-6": 6}
    assert train("4", "--resume") == 0
    assert json.loads(summary.read_text())["runs"] == {"t-6": 6, "t-4": 4}
    (tmp_path / "runs").rename(tmp_path / "moved")
    elsewhere = ("--set", f"logging.directory={tmp_path / 'moved'}")
    assert train("8", *elsewhere) == 0
    (tmp_path / "moved").rename(tmp_path / "runs")
    assert json.loads(summary.read_text())["runs"] == {"t-6": 6, "t-4": 4, "t-8": 8}
    assert train("3,4,7", "--resume", "--set", "learning.gamma=0.9") == 2  # two are refused
    assert json.loads(summary.read_text())["runs"] == {"t-7": 7}


def test_values_are_varied_with_all_seeds(train: Train, tmp_path: Path, capsys) -> None:
    vary = ("--vary", "learning.gamma=0.5,0.9", "--vary", "learning.lambda=0,1")
    assert train("3,4", *vary) == 0
    runs = tmp_path / "runs"
    names = [f"t-{gamma}-{trace}" for gamma in (0.5, 0.9) for trace in (0, 1)]
    expected = {f"{name}-{seed}" for name in names for seed in (3, 4)}
    expected |= {f"{name}-seeds.json" for name in names}
    assert {path.name for path in runs.iterdir()} == expected
    known = load_config(runs / "t-0.9-0-4" / "config.yaml")
    assert (known.learning.gamma, known.learning.lambda_, known.environment.seed) == (0.9, 0, 4)
    found = json.loads((runs / "t-0.5-1-seeds.json").read_text())
    assert found["runs"] == {"t-0.5-1-3": 3, "t-0.5-1-4": 4}
    capsys.readouterr()
    assert train("3,4", *vary) == 2
    assert "t-0.5-0-3 exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("vary", "line"),
    [
        (["learning.gamma"], "--vary learning.gamma: give a key and different values"),
        (["learning.gamma=0.5,,1"], "--vary learning.gamma=0.5,,1: give a key and different"),
        (["learning.gamma=0.5,0.5"], "--vary learning.gamma=0.5,0.5: give a key and different"),
        (["learning.gamma=0.5,2"], "--vary: learning.gamma"),
        (["learning.gama=0.5"], "override learning.gama=0.5: unknown key"),
        (["environment.seed=1,2"], "--vary environment.seed: --seeds says the seeds"),
        (
            ["experiment.uav.communication_range=[0, 25]"],
            "25]: give a key and different values, no",
        ),
        (["experiment.title=a b"], "--vary: run name 't-a b-3': use up to 200 letters"),
        (["compute.device=cpu,cuda"], "--vary compute.device: is one for all runs of a command"),
        (["logging.directory=a,b"], "--vary logging.directory: is one for all runs"),
        (
            ["learning.gamma=0.5", "learning.gamma=0.9"],
            "--vary learning.gamma: give all its values",
        ),
        (["learning.gamma=0.5,0.50"], "--vary: t-0.5-3 and t-0.50-3 are the same training"),
        (["learning.patience=1,1-2", "experiment.title=2-1,1"], "named NAME-1-2-1"),
    ],
)
def test_bad_variations_are_one_line(
    vary: list[str], line: str, train: Train, tmp_path: Path, capsys
) -> None:
    assert train("3", *(part for text in vary for part in ("--vary", text))) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert line in error
    assert list(tmp_path.iterdir()) == []


def test_all_that_is_to_be_trained_is_checked(train: Train, tmp_path: Path, capsys) -> None:
    vary = ("--vary", "environment.num_envs=4,1000000")
    assert train("3,4", *vary, "--check") == 2
    assert "this training needs at least" in capsys.readouterr().err
    assert train("3,4", "--vary", "learning.gamma=0.8,0.9", "--check") == 0
    assert train("3,x", "--print-config") == 2
    assert train("3,400", name="x" * 197) == 2
    told = capsys.readouterr().err
    assert "--seeds 3,x: give different" in told
    assert "-400': use up to 200 letters" in told
    assert list(tmp_path.iterdir()) == []


def test_variations_need_seeds(capsys) -> None:
    given = ["--config", "params_test.yaml", "--run-name", "t", "--vary", "learning.gamma=0.5,1"]
    assert main(given) == 2
    assert (
        capsys.readouterr().err == "error: --vary: goes with --seeds, for one seed shows little\n"
    )


def test_runs_of_another_kind_are_left_out_of_the_sums(tmp_path: Path) -> None:
    config = load_config("params_test", [f"logging.directory={tmp_path}"])
    predicted = {"results": {"finished": True, "last": {"loss": 1.0}}, "timing": {"seconds": 1.0}}
    for name, summary in {"t-1": predicted, "t-2": {"results": [1]}, "t-3": [2]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    found = seeds_module.sum_up(seeds_module.with_seeds(config, "t", [1, 2, 3]), tmp_path)
    assert found == {"runs": {}, "metrics": {}}


def test_a_failed_seed_does_not_stop_the_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = seeds_module.config_from_dict({}, "defaults")
    runs = seeds_module.with_seeds(config, "t", [1, 2])
    trained = []

    def train(_: object, *, run_name: str, log: RunLog) -> int:
        trained.append(run_name)
        return 1

    train_all = partial(train_runs, train=train, log=RunLog(), jobs=1)
    assert seeds_module.train_each({"t": runs}, train_all, tmp_path) == 1
    assert trained == ["t-1", "t-2"]
    assert list(tmp_path.iterdir()) == []


def test_a_seed_that_cannot_be_trained_does_not_stop_the_others(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    real = Trainer.training_step
    errors = {3: OSError(28, "No space left on device", "disk"), 4: ConfigError("sensor: broken")}

    def step(trainer: Trainer, timer):
        error = errors.get(trainer.config.environment.seed)
        if error is not None:
            raise error
        return real(trainer, timer)

    monkeypatch.setattr(Trainer, "training_step", step)
    assert train("3,4,5") == 2
    told = capsys.readouterr().err
    assert "error: No space left on device: disk" in told
    assert "error: sensor: broken\n" in told
    assert "Traceback" not in told
    assert json.loads((tmp_path / "runs" / "t-seeds.json").read_text())["runs"] == {"t-5": 5}
    del errors[4]
    assert train("3,6", name="u") == 1


def test_series_of_bad_input_leaves_nothing(train: Train, tmp_path: Path, capsys) -> None:
    bad = ("--set", "experiment.algorithm=no.such")
    assert train("3,4", *bad) == 2
    assert capsys.readouterr().err.count("no.such") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("3,x",), "--seeds 3,x: give different whole numbers"),
        (("3,3",), "--seeds 3,3: give different whole numbers"),
        (("3,-1",), "--seeds 3,-1: give different whole numbers"),
        (("99999999999",), "environment.seed"),
        (("3", "--set", "experiment.policy=random"), "--seeds: there is no training"),
    ],
)
def test_bad_seeds_are_one_line(
    arguments: tuple[str, ...], named: str, train: Train, tmp_path: Path, capsys
) -> None:
    assert train(*arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
    assert list(tmp_path.iterdir()) == []


def test_seeds_need_a_name_for_their_runs(capsys) -> None:
    assert main(["--config", "params_test.yaml", "--device", "cpu", "--seeds", "3,4"]) == 2
    assert capsys.readouterr().err == "error: --seeds: name the runs with --run-name\n"
