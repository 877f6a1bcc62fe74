"""Several seeds trained in one process: each as it would be alone, and each with its own fate."""

from __future__ import annotations

import gc
import json
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from benchmarks.helpers.pretend_gpu import GPU, PretendGpu, pretend_gpu
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.main import main
from marl_framework.stage_timer import StageTimer
from marl_framework.training import memory
from marl_framework.training import together as together_module
from marl_framework.training import trainer as trainer_module
from marl_framework.training.joint_step import JointStep
from marl_framework.training.trainer import Trainer
from tests.small import small_config

CPU = torch.device("cpu")
SEEDS = (3, 4, 5)
VARIED = (
    "experiment.missions.n_agents=[1, 2]",
    "experiment.uav.communication_range=[0, .inf]",
    "experiment.uav.crash_rate=0.1",
    "experiment.constraints.obstacles.number=1",
    "sensor.simulation.kinds=[mixed]",
    "learning.update_interval=2",
)
Train = Callable[..., int]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train four steps of params_test.yaml with three seeds; returns the exit code."""
    # Names of TensorBoard's files are in order as long as this count keeps its number of digits.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    monkeypatch.setattr(Trainer, "_draw_mission", lambda *_: None)
    given = ["--config", "params_test.yaml", "--device", "cpu"]
    always = ("learning.training_steps=4", f"logging.directory={tmp_path}")

    def run(name: str, *options: str, sets: tuple[str, ...] = (), seeds: str = "3,4,5") -> int:
        settings = [part for text in (*always, *sets) for part in ("--set", text)]
        return main([*given, *settings, "--run-name", name, "--seeds", seeds, *options])

    return run


def results(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text())["results"])


def checkpoint(run: Path) -> dict[str, Any]:
    return dict(torch.load(run / "checkpoints" / "last.pt", weights_only=True))


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """All that was logged, but for the times."""
    log = EventAccumulator(str(run / "tensorboard"), {"scalars": 0})
    log.Reload()
    kept = [tag for tag in log.Tags()["scalars"] if not tag.startswith(("time/", "hardware/"))]
    return {tag: [(event.step, event.value) for event in log.Scalars(tag)] for tag in kept}


def assert_same(first: Path, second: Path) -> None:
    """Runs that ended with the same bits."""
    assert results(first) == results(second)
    assert scalars(first) == scalars(second)
    one, other = checkpoint(first), checkpoint(second)
    for name in ("actor", "critic", "target_critic"):
        assert all(one[name][key].equal(other[name][key]) for key in one[name])
    for name in ("actor_optimizer", "generators", "last", "best", "episodes"):
        assert str(one[name]) == str(other[name])


@pytest.mark.parametrize("sets", [(), VARIED])
def test_each_run_has_the_bits_that_it_has_alone(
    train: Train, tmp_path: Path, capsys, sets: tuple[str, ...]
) -> None:
    assert train("alone", sets=sets) == 0
    capsys.readouterr()
    assert train("t", "--together", sets=sets) == 0
    for seed in SEEDS:
        assert_same(tmp_path / f"alone-{seed}", tmp_path / f"t-{seed}")
    printed = capsys.readouterr().out
    assert "3 runs at once: missions in one batch, networks one after the other\n" in printed
    log = (tmp_path / "t-4" / "train.log").read_text()
    assert log.startswith("seed 4: t-4\n")
    assert log.count("step 4/4") == log.count("done: ") == 1
    assert "t-3" not in log
    assert "\nt-4 | done: " in printed
    found = [json.loads((tmp_path / f"{name}-seeds.json").read_text()) for name in ("alone", "t")]
    returns = [each["metrics"]["last return"] for each in found]
    assert returns[0] == returns[1]


def test_a_signal_ends_all_and_they_go_on_together(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    real = JointStep.__call__

    def step(joint: JointStep, timers: Any) -> Any:
        made = real(joint, timers)
        if joint._trainers[0].algorithm.training_steps == 2:
            signal.raise_signal(signal.SIGTERM)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(JointStep, "__call__", step)
        assert train("t", "--together") == 130
    assert [results(tmp_path / f"t-{seed}")["training_steps"] for seed in SEEDS] == [2, 2, 2]
    assert "t-5 | interrupted" in capsys.readouterr().err
    assert train("t", "--together", "--resume") == 0
    assert train("t", "--together", "--resume") == 0
    assert capsys.readouterr().out.count("finished already") == 3
    assert train("alone") == 0
    for seed in SEEDS:
        assert_same(tmp_path / f"alone-{seed}", tmp_path / f"t-{seed}")


def test_a_second_signal_ends_all_at_once(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(joint: JointStep, timers: Any) -> Any:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JointStep, "__call__", step)
    assert train("t", "--together") == 130
    assert list(tmp_path.iterdir()) == []  # nothing was learned; names stay free


def test_a_second_signal_ends_those_that_wait_for_others_too(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(joint: JointStep, timers: Any) -> Any:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    assert train("t", sets=("learning.training_steps=1",), seeds="4") == 0
    monkeypatch.setattr(JointStep, "__call__", step)
    allowed = ("--resume", "--allow-changed", "learning.training_steps")
    assert train("t", "--together", *allowed) == 130
    assert checkpoint(tmp_path / "t-4")["training_step"] == 1


def test_a_second_signal_ends_all_at_once_while_one_ends(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw(trainer: Trainer, _: Any) -> None:
        drawn.append(trainer.config.environment.seed)
        signal.raise_signal(signal.SIGINT)

    real = Trainer.note

    def note(trainer: Trainer, *arguments: Any) -> Any:
        if trainer.config.environment.seed == 3:
            signal.raise_signal(signal.SIGINT)
        return real(trainer, *arguments)

    monkeypatch.setattr(Trainer, "note", note)
    monkeypatch.setattr(Trainer, "_draw_mission", draw)
    assert train("t", "--together") == 130
    assert drawn == [3]
    states = [json.loads((tmp_path / f"t-{n}" / "status.json").read_text()) for n in SEEDS]
    assert {state["state"] for state in states} == {"interrupted"}


@pytest.mark.parametrize("together", [True, False])
def test_a_signal_between_two_steps_is_told(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    module, name = (together_module, "_next_ones") if together else (trainer_module, "partial")
    real, calls = getattr(module, name), []

    def interrupted(*arguments: Any) -> Any:
        calls.append(name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, name, interrupted)
    assert train("t", *(["--together"] if together else [])) == 130
    for seed in SEEDS if together else SEEDS[:1]:
        state = json.loads((tmp_path / f"t-{seed}" / "status.json").read_text())
        assert state["state"] == "interrupted"
        assert "error" not in state


def test_runs_that_have_ended_give_their_memory_back(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners: list[weakref.ref[Any]] = []
    alive: list[int] = []
    real_init, real_join = Trainer.__init__, JointStep.__init__

    def make(trainer: Trainer, *arguments: Any) -> None:
        real_init(trainer, *arguments)
        learners.append(weakref.ref(trainer.algorithm))

    def join(joint: JointStep, trainers: Any) -> None:
        alive.append(sum(each() is not None for each in learners))
        real_join(joint, trainers)

    def fail(trainer: Trainer, *_: Any) -> Any:
        if trainer.config.environment.seed == 4:
            raise ConfigError("sensor: broken")
        return {}, False

    monkeypatch.setattr(Trainer, "__init__", make)
    monkeypatch.setattr(JointStep, "__init__", join)
    monkeypatch.setattr(Trainer, "validate_when_due", fail)
    gc.disable()  # nothing else finds what refers to itself
    try:
        assert train("t", "--together", sets=("compute.stack_networks=always",)) == 2
    finally:
        gc.enable()
    assert alive == [3, 2]


def test_threads_are_watched_as_before(train: Train) -> None:
    before = threading.excepthook
    assert train("t", "--together", sets=("learning.training_steps=1",)) == 0
    assert threading.excepthook is before


def test_a_signal_before_the_first_step_keeps_runs_from_being_begun(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    real = Trainer.__init__

    def make(trainer: Trainer, *arguments: Any) -> None:
        real(trainer, *arguments)
        if trainer.config.environment.seed == 4:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trainer, "__init__", make)
    assert train("t", "--together") == 130
    assert "could not be saved" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["t-3"]  # which waited for this step
    assert results(tmp_path / "t-3")["training_steps"] == 1


def test_one_that_is_behind_catches_up(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    longer = "learning.training_steps=4"
    assert train("t", sets=("learning.training_steps=1",), seeds="4") == 0
    allowed = ("--resume", "--allow-changed", "learning.training_steps")
    capsys.readouterr()
    assert train("t", "--together", *allowed, sets=(longer,)) == 0
    told = capsys.readouterr().out
    assert told.index("2 runs at once") < told.index("3 runs at once")
    assert train("alone", sets=("learning.training_steps=1",), seeds="4") == 0
    assert train("alone", *allowed, sets=(longer,)) == 0
    for seed in SEEDS:
        assert_same(tmp_path / f"alone-{seed}", tmp_path / f"t-{seed}")


def test_one_that_stops_early_leaves_the_others_to_go_on(train: Train, tmp_path: Path) -> None:
    patient = (
        "learning.training_steps=12",
        "learning.patience=1",
        "evaluation.interval=1",
        "learning.actor.learning_rate=0.003",
    )
    assert train("alone", sets=patient) == 0
    assert train("t", "--together", sets=patient) == 0
    steps = {results(tmp_path / f"t-{seed}")["training_steps"] for seed in SEEDS}
    assert len(steps) > 1
    for seed in SEEDS:
        assert_same(tmp_path / f"alone-{seed}", tmp_path / f"t-{seed}")


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ConfigError("sensor: broken"), "t-4 | error: sensor: broken\n", 2),
        (OSError(28, "No space left", "disk"), "t-4 | error: No space left: disk; fix it", 1),
        (torch.OutOfMemoryError("CUDA out of memory"), "t-4 | error: out of memory", 1),
        (ValueError("odd"), "t-4 | ValueError: odd\n", 1),
    ],
)
@pytest.mark.parametrize("when", ["opening", "training"])
def test_one_that_fails_leaves_the_others_to_go_on(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
    error: Exception,
    line: str,
    code: int,
    when: str,
) -> None:
    name = "__init__" if when == "opening" else "note"
    real = getattr(Trainer, name)

    def fail(trainer: Trainer, *arguments: Any) -> Any:
        found = real(trainer, *arguments)
        if trainer.config.environment.seed == 4 and trainer.algorithm.training_steps != 1:
            raise error
        return found

    def log(trainer: Trainer, *arguments: Any) -> Any:
        step = validate(trainer, *arguments)
        if trainer.config.environment.seed == 4 and trainer.algorithm.training_steps == 2:
            raise error
        return step

    validate = Trainer.validate_when_due
    if when == "opening":
        monkeypatch.setattr(Trainer, "__init__", fail)
    else:
        monkeypatch.setattr(Trainer, "validate_when_due", log)
    assert train("t", "--together") == code
    assert line in capsys.readouterr().err
    assert json.loads((tmp_path / "t-seeds.json").read_text())["runs"] == {"t-3": 3, "t-5": 5}
    if when == "training":
        assert json.loads((tmp_path / "t-4" / "status.json").read_text())["state"] == "failed"
    monkeypatch.undo()
    monkeypatch.setattr(Trainer, "_draw_mission", lambda *_: None)
    assert train("alone", seeds="3,5") == 0
    for seed in (3, 5):
        assert_same(tmp_path / f"alone-{seed}", tmp_path / f"t-{seed}")


def test_an_error_in_a_step_of_all_is_told_by_each(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def step(joint: JointStep, timers: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(JointStep, "__call__", step)
    assert train("t", "--together") == 1
    assert capsys.readouterr().err.count("error: out of memory: train fewer runs together") == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--together", "--jobs", "2"), "--together: is one process; leave out --jobs 2"),
        (("--together", "--vary", "learning.gamma=0,1"), "--vary learning.gamma: runs that train"),
        (("--together", "--profile", "1"), "--together: --profile records one training"),
    ],
)
def test_options_that_do_not_go_together(
    train: Train, tmp_path: Path, capsys, options: tuple[str, ...], line: str
) -> None:
    assert train("t", *options) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {line}")
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_learning_rates_are_varied_together(train: Train, tmp_path: Path) -> None:
    vary = ("--vary", "learning.actor.learning_rate=0.001,0.01")
    exact, stacked = "compute.precision=float32", "compute.stack_networks=always"
    assert train("alone", *vary, sets=(exact,), seeds="3,4") == 0
    assert train("t", "--together", *vary, sets=(exact,), seeds="3,4") == 0
    assert train("s", "--together", *vary, sets=(exact, stacked), seeds="3,4") == 0
    for run in ("0.001-3", "0.001-4", "0.01-3", "0.01-4"):
        assert_same(tmp_path / f"alone-{run}", tmp_path / f"t-{run}")
        known = [checkpoint(tmp_path / f"{name}-{run}")["actor"] for name in ("t", "s")]
        for one, other in zip(*(each.values() for each in known), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert (tmp_path / "t-0.01-seeds.json").exists()


def test_together_needs_seeds(capsys) -> None:
    assert main(["--config", "params_test.yaml", "--together", "--run-name", "t"]) == 2
    told = capsys.readouterr().err
    assert told == "error: --together: goes with --seeds; there is one training\n"


def test_recordings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together_module, "is_recorded", lambda *_: True)
    config = load_config("params_test.yaml")
    with pytest.raises(ConfigError, match=r"compute\.cuda_graphs: does not work with --together"):
        together_module.check_together(config, CPU, 2)


def test_more_than_the_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("params_test.yaml", ["evaluation.interval=0"])
    parts = memory.memory_estimate(config, device=CPU)
    del parts["activations"]
    total = 2 * memory.peak(parts)
    monkeypatch.setattr(memory, "device_memory", lambda _: (total, total))
    memory.check_memory(config, CPU, together=2)
    with pytest.raises(ConfigError, match="--together: 3 trainings need at least"):
        memory.check_memory(config, CPU, together=3)


# Networks stacked -------------------------------------------------------------------------


EXACT = {"precision": "float32", "tf32": False, "cudnn_benchmark": False}


def three(device: torch.device = CPU, **sections: Any) -> list[Trainer]:
    return [Trainer(small_config(seed=seed, **sections), device) for seed in SEEDS]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"learning": {"symmetries": True, "batch_size": 96, "batch_number": 2}},
        {"learning": {"update_interval": 2}, "uav": {"crash_rate": 0.2}},
        {"learning": {"batch_size": 192, "batch_number": 2, "advantage": "return"}},
        {"experiment": {"algorithm": "central_v"}},
    ],
)
def test_stacked_networks_learn_what_each_learns_alone(
    device: torch.device, sections: dict[str, Any]
) -> None:
    alone = three(device, **sections, compute=EXACT)
    stacked = three(device, **sections, compute={**EXACT, "stack_networks": "always"})
    timers = [StageTimer(device) for _ in SEEDS]
    joint = JointStep(stacked)
    assert joint.description == "missions in one batch, networks stacked"
    for _ in range(3):
        expected = [one.training_step(timer) for one, timer in zip(alone, timers, strict=True)]
        for mine, theirs in zip(joint(timers), expected, strict=True):
            assert mine[0].keys() == theirs[0].keys()
            for found, wanted in zip(mine, theirs, strict=True):
                for key, value in wanted.items():
                    torch.testing.assert_close(
                        torch.as_tensor(found[key]).double().cpu(),
                        torch.as_tensor(value).double().cpu(),
                        rtol=1e-3,
                        atol=1e-4,
                        msg=key,
                    )
    for one, other in zip(alone, stacked, strict=True):
        for kind, module in one.algorithm.modules.items():
            for first, second in zip(
                module.parameters(), other.algorithm.modules[kind].parameters(), strict=True
            ):
                torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


def test_a_gpu_stacks_networks_and_says_what_keeps_them_apart() -> None:
    with pretend_gpu(PretendGpu()):
        found = [
            JointStep(three(GPU, **sections)).description
            for sections in (
                {},
                {"learning": {"kl_limit": 0.1}},
                {"compute": {"stack_networks": "never"}},
            )
        ]
    apart = "missions in one batch, networks one after the other"
    assert found == [
        "missions in one batch, networks stacked",
        f"{apart}, because of learning.kl_limit",
        apart,
    ]


def test_what_cannot_be_stacked_is_refused_where_it_must_be(
    train: Train, tmp_path: Path, capsys
) -> None:
    sets = ("compute.stack_networks=always", "learning.kl_limit=0.1")
    assert train("t", "--together", sets=sets) == 2
    line = "error: compute.stack_networks: always does not work with learning.kl_limit; use auto\n"
    assert capsys.readouterr().err == line
    assert train("t", "--together", "--check", sets=sets) == 2
    assert capsys.readouterr().err == line
    assert list(tmp_path.iterdir()) == []


def test_runs_with_stacked_networks_go_on_where_they_stopped(train: Train, tmp_path: Path) -> None:
    stacked = "compute.stack_networks=always"
    assert train("whole", "--together", sets=(stacked,)) == 0
    assert train("t", "--together", sets=(stacked, "learning.training_steps=2")) == 0
    longer = ("--resume", "--allow-changed", "learning.training_steps")
    assert train("t", "--together", *longer, sets=(stacked,)) == 0
    for seed in SEEDS:
        assert_same(tmp_path / f"whole-{seed}", tmp_path / f"t-{seed}")
