"""Several trainings by one command: what is trained, the commands, and the summary over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy.stats import t as student

from marl_framework.config.loading import config_from_dict, dump_config, load_config
from marl_framework.config.model import Config
from marl_framework.main import main
from marl_framework.training.series import sum_up, write_summary
from tests.running import results, run_main

Train = Callable[..., int]
GIVEN = ("--config", "params_test.yaml", "--device", "cpu", "--max-episodes", "2")


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train two steps of params_test.yaml with several seeds; returns the exit code."""

    def run(seeds: str, *arguments: str, name: str = "t") -> int:
        return run_main(tmp_path, name, "--max-episodes=2", "--seeds", seeds, *arguments)

    return run


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The commands of a series, which are not run; all fail."""
    found: dict[str, list[str]] = {}

    def run_commands(given: dict[str, list[str]], jobs: int) -> dict[str, int]:
        found.update(given)
        return dict.fromkeys(given, 1)

    monkeypatch.setattr("marl_framework.training.series.run_commands", run_commands)
    return found


def settings_of(words: list[str]) -> list[str]:
    return [word.removeprefix("--set=") for word in words if word.startswith("--set=")]


@pytest.mark.soak
def test_runs_at_once_are_what_each_is_alone_and_are_summed_up(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused
) -> None:
    runs = tmp_path / "runs"
    assert train("3,4", "--jobs", "2") == 0
    shown = capsys.readouterr().out
    alone = ["--set", f"logging.directory={tmp_path / 'alone'}", "--run-name", "t"]
    assert main([*GIVEN, *alone, "--set", "environment.seed=4"]) == 0
    assert results(runs / "t-4") == results(tmp_path / "alone" / "t")
    assert "\nstep 2/2 | " in (runs / "t-3" / "train.log").read_text()
    command = json.loads((runs / "t-4" / "environment.json").read_text())["command"]
    assert "marl_framework.main --run-name=t-4" in command
    found = json.loads((runs / "t-seeds.json").read_text())
    assert found["runs"] == {"t-3": 3, "t-4": 4}
    assert str(runs / "t-seeds.json") in shown
    first = (runs / "t-3" / "summary.json").read_bytes()
    assert "run name t-3" in refused(train, "3,4")  # it never overwrites
    (runs / "t-seeds.json").unlink()
    assert train("3,4", "--resume") == 0
    assert (runs / "t-3" / "summary.json").read_bytes() == first
    assert json.loads((runs / "t-seeds.json").read_text()) == found


def test_commands_give_the_configuration_of_their_run(
    train: Train, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    vary = ("--vary", "learning.gamma=0.5,0.9", "--vary", "learning.actor.learning_rate=1e-5,0.002")
    more = ("--init-from", "pretrained:student", "--profile", "1", "--archive-earlier")
    assert train("3,4", *vary, *more) == 1
    assert len(commands) == 8
    name = "t-0.9-1e-5-4"
    _, module, path, *words = commands[name]
    assert (module, path) == ("-m", "marl_framework.main")
    assert words[0] == f"--run-name={name}"
    assert {"--init-from=pretrained:student", "--profile=1", "--archive-earlier"} <= {*words}
    known = load_config("params_test.yaml", settings_of(words))
    assert (known.learning.gamma, known.environment.seed) == (0.9, 4)
    assert known.learning.actor.learning_rate == 1e-5
    assert (known.learning.training_steps, known.compute.device) == (2, "cpu")
    assert known.logging.directory == str(tmp_path / "runs")
    assert not list(tmp_path.iterdir())


def test_a_varied_algorithm_has_its_own_defaults_and_keeps_values_of_the_command(
    train: Train, commands: dict[str, list[str]]
) -> None:
    vary = ("--vary", "experiment.algorithm=coma,mappo,sac", "--set", "learning.gamma=0.5")
    assert train("3", *vary) == 1
    for name, clip, size in (("coma", 0.0, 0), ("mappo", 0.2, 0), ("sac", 0.0, 100_000)):
        known = load_config("params_test.yaml", settings_of(commands[f"t-{name}-3"])).learning
        assert (known.clip_ratio, known.replay_size, known.gamma) == (clip, size, 0.5)
    commands.clear()
    kept = ("--vary", "experiment.algorithm=sac", "--vary", "learning.replay_size=0,500")
    assert train("3", *kept) == 1
    sets = settings_of(commands["t-sac-0-3"])
    assert load_config("params_test.yaml", sets).learning.replay_size == 0


@pytest.mark.parametrize(
    ("vary", "named"),
    [
        (["learning.gamma"], "--vary learning.gamma"),
        (["learning.gamma=0.5,,1"], "--vary learning.gamma=0.5,,1"),
        (["learning.gamma=0.5,0.5"], "--vary learning.gamma=0.5,0.5"),
        (["learning.gamma=0.5,2"], "--vary: learning.gamma"),
        (["learning.gama=0.5"], "learning.gama=0.5"),
        (["environment.seed=1,2"], "--vary environment.seed"),
        (["experiment.uav.communication_range=[0, 25]"], "communication_range=[0, 25]"),
        (["experiment.title=a b"], "--vary: run name 't-a b-3'"),
        (["compute.device=cpu,cuda"], "--vary compute.device"),
        (["logging.directory=a,b"], "--vary logging.directory"),
        (["learning.gamma=0.5", "learning.gamma=0.9"], "--vary learning.gamma"),
        (["learning.gamma=0.5,0.50"], "t-0.5-3 and t-0.50-3"),
        (["learning.patience=1,1-2", "experiment.title=2-1,1"], "NAME-1-2-1"),
    ],
)
def test_bad_variations_are_one_line(
    vary: list[str], named: str, train: Train, tmp_path: Path, refused
) -> None:
    assert named in refused(train, "3", *(part for text in vary for part in ("--vary", text)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--seeds", "3,x"), "--seeds 3,x"),
        (("--seeds", "3,3"), "--seeds 3,3"),
        (("--seeds", "3,-1"), "--seeds 3,-1"),
        (("--seeds", "3" * 5000), "--seeds 3"),
        (("--seeds", "99999999999"), "environment.seed"),
        (("--seeds", "3", "--set", "environment.seed=5"), "--set environment.seed"),
        (("--seeds", "3,400", "--run-name", "x" * 197), "-400'"),
        (("--seeds", "3", "--set", "experiment.policy=random"), "--seeds"),
        (("--seeds", "3,4", "--jobs", "0"), "--jobs 0"),
        (("--seeds", "3", "--slurm", "time=1"), "--slurm requires --launcher slurm"),
        (("--seeds", "3", "--launcher", "slurm", "--slurm", "time"), "--slurm time"),
        (("--jobs", "2"), "--jobs 2 requires --seeds"),
        (("--launcher", "slurm"), "--launcher slurm requires --seeds"),
        (
            ("--seeds", "3", "--launcher", "slurm", "--archive-earlier"),
            "--archive-earlier: not supported with --launcher slurm",
        ),
        (("--vary", "learning.gamma=0.5,1"), "--vary requires --seeds"),
    ],
)
def test_bad_options_are_one_line(
    arguments: tuple[str, ...], named: str, tmp_path, refused
) -> None:
    runs = f"logging.directory={tmp_path / 'runs'}"
    assert named in refused(main, [*GIVEN, "--set", runs, "--run-name", "t", *arguments])
    assert list(tmp_path.iterdir()) == []


def test_seeds_need_a_name_for_their_runs(refused) -> None:
    assert "--run-name" in refused(main, [*GIVEN, "--seeds", "3,4"])


def test_all_variants_are_checked(train: Train, tmp_path: Path, refused) -> None:
    many = ("--vary", "environment.num_envs=4,1000000", "--check")
    assert "environment.num_envs" in refused(train, "3,4", *many)
    assert train("3,4", "--vary", "learning.gamma=0.8,0.9", "--check") == 0
    assert list(tmp_path.iterdir()) == []


# The summary -------------------------------------------------------------------------------


def finished(folder: Path, name: str, value: float | None = 1.0, **learning: float) -> Config:
    """Leave a run that has ended; return its configuration."""
    tree = {"environment": {"seed": int(name.rpartition("-")[2])}, "learning": learning}
    config = config_from_dict(tree, name)
    (folder / name).mkdir()
    dump_config(config, folder / name / "config.yaml")
    results = {"finished": value is not None, "last": {"return": value}, "best": {}}
    timing = {"seconds": 2.0, "transitions_per_second": 3.0}
    content = {"results": results, "timing": timing}
    (folder / name / "summary.json").write_text(json.dumps(content))
    return config


def test_the_interval_is_students(tmp_path: Path) -> None:
    values = [1.5, 2.5, 4.0]
    names = [f"t-{seed}" for seed in (3, 4, 5)]
    runs = {n: finished(tmp_path, n, value) for n, value in zip(names, values, strict=True)}
    runs["t-6"] = finished(tmp_path, "t-6", None)
    found = sum_up(runs, tmp_path)
    assert found["runs"] == {"t-3": 3, "t-4": 4, "t-5": 5}
    known = found["metrics"]["last return"]
    assert known["values"] == values
    error = statistics.stdev(values) / 3**0.5
    expected = student.interval(0.95, 2, statistics.fmean(values), error)
    assert known["interval"] == pytest.approx(expected, rel=1e-3)
    single = sum_up({"t-3": runs["t-3"]}, tmp_path)["metrics"]["last return"]
    assert single["std"] is single["interval"] is None


def test_a_later_seed_of_the_same_training_joins_the_summary(tmp_path: Path) -> None:
    file = tmp_path / "t-seeds.json"

    def add(name: str, **learning: float) -> dict[str, int]:
        runs = {name: finished(tmp_path, name, **learning)}
        write_summary(file, runs, runs)
        return json.loads(file.read_text())["runs"]

    assert add("t-3") == {"t-3": 3}
    assert add("t-4") == {"t-3": 3, "t-4": 4}
    assert add("t-5", gamma=0.5) == {"t-5": 5}  # another training
    assert add("t-6") == {"t-6": 6}


@pytest.mark.parametrize("summary", [{"results": [1]}, [2], {"results": {"finished": True}}])
def test_runs_of_another_kind_are_left_out(tmp_path: Path, summary: object) -> None:
    config = finished(tmp_path, "t-1")
    (tmp_path / "t-1" / "summary.json").write_text(json.dumps(summary))
    assert sum_up({"t-1": config}, tmp_path) == {"runs": {}, "metrics": {}}
