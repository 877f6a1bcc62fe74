"""The command line, in process: what a run leaves, and how bad input is reported."""

import json
import re
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marl_framework.main import main
from marl_framework.training.trainer import Trainer
from tests.running import results, run_main
from tests.training.steps import at_step

ROOT = Path(__file__).parents[1]


@pytest.fixture
def train(tmp_path):
    """Train params_test.yaml into tmp_path/runs/NAME; returns the exit code."""

    return partial(run_main, tmp_path)


@pytest.mark.usefixtures("drawn")
def test_a_run_leaves_all_it_promises(train, tmp_path, capsys):
    assert train("t") == 0
    run = tmp_path / "runs" / "t"
    for name in ("config.yaml", "environment.json", "figures/mission.png"):
        assert (run / name).stat().st_size > 0
    for name in ("last.pt", "best.pt"):
        checkpoint = torch.load(run / "checkpoints" / name, weights_only=True)
        assert {"actor", "critic", "target_critic"} <= set(checkpoint)
    found = json.loads((tmp_path / "runs" / "t" / "summary.json").read_text())
    assert set(found) == {"results", "timing", "machine"}
    assert found["results"]["training_steps"] == 4
    assert 0 < found["results"]["best"]["validation_entropy"] <= 1
    printed = capsys.readouterr().out
    assert printed.startswith("Using CPU: ")
    assert "step 4/4" in printed
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    tags = events.Tags()
    for section, names in (
        ("return", "episode reward"),
        ("validation", "entropy f1"),
        ("loss", "actor critic actor_gradient_norm critic_gradient_norm"),
        ("critic", "td_target explained_variance"),
        ("policy", "advantage entropy kl"),
    ):
        assert {f"{section}/{name}" for name in names.split()} <= set(tags["scalars"])
    assert {"policy/actions", "policy/altitudes"} <= set(tags["histograms"])
    (shown,) = events.Images("figures/mission")
    assert (shown.width, shown.height) > (1000, 500)


def test_the_same_seed_gives_the_same_results_and_another_seed_does_not(train, tmp_path):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert train(name, "--set", f"environment.seed={seed}") == 0
    found = [results(tmp_path / "runs" / name) for name in "abc"]
    assert found[0] == found[1]
    assert found[0]["weights_sha256"] != found[2]["weights_sha256"]
    assert found[0]["last"] != found[2]["last"]


def test_validation_does_not_touch_the_training(train, tmp_path):
    for name, interval in (("never", 0), ("always", 1)):
        assert train(name, "--set", f"evaluation.interval={interval}") == 0
    never, always = (results(tmp_path / "runs" / name) for name in ("never", "always"))
    assert never["weights_sha256"] == always["weights_sha256"]
    assert never["best"] == {}
    assert (tmp_path / "runs" / "never" / "checkpoints" / "best.pt").exists()


def test_whole_episodes_are_collected_until_the_batches_are_full(train, tmp_path):
    # 2 UAVs × 4 moves × 4 missions are 32 transitions a rollout; 40 are asked for.
    sizes = ("--set", "learning.batch_size=20", "--set", "learning.batch_number=2")
    assert train("t", *sizes, "--set", "learning.training_steps=1") == 0
    assert results(tmp_path / "runs" / "t")["transitions"] == 64


def test_a_profile_is_written(train, tmp_path, capsys):
    assert train("t", "--profile", "1") == 0
    trace = json.loads((tmp_path / "runs" / "t" / "profile.json").read_text())
    assert any("conv" in event.get("name", "") for event in trace["traceEvents"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_ends_its_step_and_keeps_its_state(
    number, train, tmp_path, monkeypatch
):
    monkeypatch.setattr(Trainer, "make_steps", at_step(2, lambda _: signal.raise_signal(number)))
    assert train("t") == 130
    path = tmp_path / "runs" / "t" / "checkpoints" / "last.pt"
    assert torch.load(path, weights_only=True)["training_step"] == 2


def test_a_signal_before_the_training_is_one_line(train, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("marl_framework.training.team.rank_device", interrupt)
    assert train("t") == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not (tmp_path / "runs").exists()


def test_figures_come_at_their_interval(train, tmp_path):
    assert train("t", "--set", "logging.figure_interval=3") == 0
    events = EventAccumulator(str(tmp_path / "runs" / "t" / "tensorboard"), {"images": 0})
    events.Reload()
    assert [image.step for image in events.Images("figures/mission")] == [3, 4]


def test_the_params_file_comes_from_the_environment_too(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "params" / "params_test.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("n_agents: 2", "n_agents: 3"))
    for path in ("params_test.yaml", "mine.yaml", str(tmp_path / "mine.yaml")):
        monkeypatch.setenv("CONFIG_FILE_PATH", path)
        assert main(["--check", "--device", "cpu"]) == 0
    monkeypatch.setenv("CONFIG_FILE_PATH", "missing.yaml")
    assert "missing.yaml" in refused(main, ["--check", "--device", "cpu"])
    assert main(["--check", "--device", "cpu", "--config", "mine.yaml"]) == 0  # the option wins


def test_an_existing_run_is_never_overwritten(train, tmp_path, refused):
    assert train("t") == 0
    before = {p: p.read_bytes() for p in (tmp_path / "runs").rglob("*") if p.is_file()}
    assert "marl_framework.history --runs" in refused(train, "t")
    assert before == {p: p.read_bytes() for p in (tmp_path / "runs").rglob("*") if p.is_file()}


BAD = [
    ("--set networks.data_pases=3", "learning.data_passes"),
    ("--set learning.gamma=.nan", "learning.gamma"),
    ("--device cuda:99", "compute.device"),
    ("--device tpu", "compute.device"),
    ("--config=", "'': no such file"),
    ("--run-name ../x", "run name"),
    ("--profile -1", "--profile"),
    ("--profile 0 --set experiment.policy=random", "--profile 0"),
    ("--profile 2 --set experiment.policy=random", "--profile 2"),
    (
        "--set experiment.policy=coverage --set experiment.baselines.coverage.altitude=6",
        "coverage.altitude",
    ),
    ("--checkpoint runs/none", "checkpoint runs/none"),
    ("--missions 3", "mission_mode"),
    (
        "--set sensor.simulation.kinds=[raster] --set sensor.simulation.raster.path=none.png",
        "none.png",
    ),
]


@pytest.mark.parametrize(("arguments", "named"), BAD)
def test_bad_input_is_one_clear_line(arguments, named, train, tmp_path, refused):
    assert named in refused(train, "t", *arguments.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("spelling", ["--update_interval", "--update-interval"])
def test_an_interval_changes_neither_missions_nor_updates(spelling, train, tmp_path):
    for name, options in (("one", ()), ("three", (spelling, "3"))):
        assert train(name, "--max-episodes", "7", *options) == 0
    counts, steps = [], []
    for name in ("one", "three"):
        checkpoint = torch.load(tmp_path / "runs" / name / "checkpoints/last.pt", weights_only=True)
        (count,) = {int(s["step"]) for s in checkpoint["actor_optimizer"]["state"].values()}
        counts.append((count, checkpoint["training_step"], checkpoint["episodes"]))
        log = EventAccumulator(str(tmp_path / "runs" / name / "tensorboard"))
        log.Reload()
        steps.append([event.step for event in log.Scalars("return/episode")])
    assert counts[0] == counts[1]
    assert steps == [[1, 2, 3, 4, 5, 6, 7], [3, 6, 7]]  # the last stretch is shorter


def test_short_forms_override_their_keys(train, tmp_path, refused):
    short = ("--batch_size", "8", "--max_episodes", "1", "--a_lr", "1e-4", "--c-lr", "2e-4")
    assert train("t", *short) == 0
    text = (tmp_path / "runs" / "t" / "config.yaml").read_text()
    for key, value in (("batch_size", 8), ("training_steps", 1)):
        assert f"{key}: {value}\n" in text
    assert re.findall(r"learning_rate: (0\.000\d)", text) == ["0.0001", "0.0002"]
    for option, key in (("--batch-size", "learning.batch_size"), ("--a_lr", "learning_rate")):
        assert key in refused(train, "u", option, "0")
