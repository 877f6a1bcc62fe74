"""The one run for a machine with a GPU, on the CPU, and what it makes of failures."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import machine, no_waiting, same_draws, stages
from benchmarks.gpu.stages import Outcome, Stage, run_process, run_stage, same_weights
from benchmarks.helpers import harness
from marl_framework.config.loading import load_config
from marl_framework.kernels.versions import Version
from marl_framework.mission import environment
from marl_framework.mission.fusion import Fusion


def run_here(arguments: Sequence[str], log: Path, limit: float) -> int | None:
    """Run a stage of this repository without a process of its own, whose start takes seconds."""
    flag, module, *rest = arguments
    if module == "pytest":
        return run_process(arguments, log, limit)
    assert flag == "-m"
    with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        code: int = importlib.import_module(module).main(rest)
    return code


@pytest.mark.usefixtures("quick")
def test_all_stages_run_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages, "run_process", run_here)
    out = tmp_path / "out"
    assert gpu.main(["--device", "cpu", "--quick", "--out", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    names = [outcome["stage"] for outcome in report["stages"]]
    assert names[0] == "doctor"
    assert names[-1] == "same-weights"
    assert all(outcome["ok"] and outcome["figure"] for outcome in report["stages"])
    assert {f"{name}.log" for name in names[:-1]} <= {path.name for path in out.iterdir()}
    for name in ("training-eager", "training-graphs", "rollout-eager", "utilisation"):
        assert json.loads((out / f"{name}.json").read_text())["machine"]
    text = (out / "report.md").read_text()
    assert text in capsys.readouterr().out
    rows = re.findall(r"^\| (\S+) \| \d+\.\d \| .+ \| ok \|$", text, re.MULTILINE)
    assert rows == names
    assert "- device: CPU" in text


def stage(code: str, limit: float = 60.0, figure: str = "1 s") -> Stage:
    return Stage("t", ("-c", code), limit, lambda log: figure)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (stage("print('a'); print('no luck'); raise SystemExit(3)"), "exit code 3: no luck"),
        (stage("import signal; signal.pause()", 0.5), "took longer than 0.5 s"),
        (stage("pass", figure=""), "left no key figure"),
    ],
)
def test_a_stage_that_fails_is_listed_with_its_reason(
    made: Stage, reason: str, tmp_path: Path
) -> None:
    outcome = run_stage(made, tmp_path)
    assert (outcome.ok, outcome.reason) == (False, reason)
    assert outcome.seconds < 30


def test_the_others_run_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [stage("raise SystemExit('a | b')"), stage("pass")]
    monkeypatch.setattr(gpu, "make_stages", lambda _: made)
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path / "out")]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| t")]
    assert rows[0].endswith("| failed: exit code 1: a \\| b |")
    assert rows[1].endswith("| 1 s | ok |")


def test_what_is_left_when_the_time_is_over_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [stage("import signal; signal.pause()"), stage("pass")]
    monkeypatch.setattr(gpu, "make_stages", lambda _: made)
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path / "o"), "--minutes", "0.01"]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| t")]
    assert "| failed: took longer than 0." in rows[0]
    assert rows[1].endswith("| failed: not started: --minutes 0.01 are over |")


def test_compiled_and_plain_missions_differ_in_the_last_bits_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = iter([Version.LOOPS, Version.PLAIN] * 2)

    def in_turn(*arguments: Any) -> Fusion:
        return Fusion(*arguments, next(versions))

    monkeypatch.setattr(environment, "Fusion", in_turn)
    config = load_config("params_test.yaml")
    differences = same_draws.fly(config, harness.CPU)
    assert 0 < max(differences.values()) < same_draws.CLOSE
    assert same_draws.check(config, harness.CPU)[0]


def test_missions_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    hear, calls = environment.MissionEnvironment.hear, []

    def deaf(env: environment.MissionEnvironment, *rest: torch.Tensor) -> torch.Tensor:
        calls.append(env)
        heard = hear(env, *rest)
        return heard if env is calls[0] else torch.zeros_like(heard)

    monkeypatch.setattr(environment.MissionEnvironment, "hear", deaf)
    well, line = same_draws.check(load_config("params_test.yaml"), harness.CPU)
    assert not well
    assert "heard differs by inf" in line


def test_all_tests_for_a_gpu_are_run_on_one() -> None:
    """All marked ones, and those with the fixture `device`, which has the GPU as its second."""
    folder = stages.ROOT / "tests"
    found = set()
    for path in folder.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^@pytest\.mark\.gpu|^def test\w*\([^)]*\bdevice\b(?!:? *: str)", text, re.M):
            found.add(str(path.relative_to(stages.ROOT)))
    own = {"tests/integrations/test_bad_devices.py"}  # names of devices that there are not
    assert set(stages.TESTS) == found - own


@pytest.mark.parametrize(
    ("digests", "reason"),
    [
        (("a", "a"), ""),
        (("a", "b"), "the weights differ"),
        (("a", None), "a training left no weights"),
    ],
)
def test_weights_of_both_trainings_are_compared(
    digests: tuple[str | None, ...], reason: str, tmp_path: Path
) -> None:
    names = ("run-eager", "run-graphs")
    for name, digest in zip(names, digests, strict=True):
        if digest is not None:
            (tmp_path / "runs" / name).mkdir(parents=True)
            text = json.dumps({"results": {"weights_sha256": digest}})
            (tmp_path / "runs" / name / "summary.json").write_text(text)
    outcomes = [Outcome(name, [], 1.0, True) for name in names]
    found = same_weights(tmp_path, outcomes)
    assert found is not None
    assert (found.ok, found.reason) == (not reason, reason)
    assert same_weights(tmp_path, outcomes[:1]) is None


def test_missing_packages_are_named_with_what_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = ("pydantic", "kornia", "cv2")
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in lacking else name)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "missing packages: kornia, pydantic, opencv-python-headless\n" in error
    assert "pip download -c constraints.txt -d wheels kornia pydantic opencv-python-head" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [("--only", "doctor,walk"), ("--out", "{here}")])
def test_bad_input_is_one_line(
    wrong: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        gpu.main([wrong[0], wrong[1].format(here=tmp_path)])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlSystemGetCudaDriverVersion=lambda: 12080,
        nvmlSystemGetDriverVersion=lambda: "570.1",
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: f"GPU {handle}",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=24 * 2**30),
        nvmlDeviceGetClockInfo=lambda _, kind: 100 * kind,
        nvmlDeviceGetMaxClockInfo=lambda _, kind: 1000 * kind,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    facts = machine.machine_facts("cuda:1")
    assert facts["driver"] == "570.1 (CUDA 12.8)"
    assert (facts["device"], facts["memory"]) == ("GPU 1", "24 GiB")
    assert (facts["SM clock"], facts["memory clock"]) == ("100 of 1000 MHz", "200 of 2000 MHz")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "driver" not in machine.machine_facts("cuda")


def test_a_wait_is_watched_for_after_the_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Stub:
        def __init__(self, *_: object) -> None: ...

        def training_step(self, _: object) -> tuple[dict[str, float], dict[str, int]]:
            said.append("step")
            return {"critic_loss": 0.5}, {}

    monkeypatch.setattr(no_waiting, "Trainer", Stub)
    monkeypatch.setattr(no_waiting, "StageTimer", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", said.append)
    found = no_waiting.step_without_waiting(load_config("params_test"), torch.device("cuda", 0))
    assert found == 0.5
    assert said == ["step", "step", "error", "step", "step", "default"]


def test_opencv_may_come_from_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"opencv-python": "4.11"}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(harness, "version", version)
    assert harness._opencv_version() == "4.11"
    there.clear()
    assert harness._opencv_version() is None


def test_limits_add_up_to_a_bounded_run(tmp_path: Path) -> None:
    made = stages.make_stages(stages.Settings("cuda", tmp_path, quick=False))
    assert len({one.name for one in made}) == len(made)
    assert sum(one.limit for one in made) <= 1800
