"""The run of all checks and measurements of a GPU, on the CPU, and its failures."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import checks, machine, stages
from benchmarks.gpu.stages import Outcome, Stage, run_process, run_stage, same_weights
from benchmarks.helpers.harness import CPU
from marl_framework.config.loading import load_config
from marl_framework.kernels.versions import Version
from marl_framework.mission import environment
from marl_framework.mission.fusion import Fusion
from marl_framework.mission.radio import Radio


def run_here(arguments: Sequence[str], log: Path, limit: float) -> int | None:
    """Run a stage of this repository in this process, because starts take seconds."""
    flag, module, *rest = arguments
    if module == "pytest":
        return run_process(arguments, log, limit)
    assert flag == "-m"
    with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        code: int = importlib.import_module(module).main(rest)
    return code


@pytest.mark.soak
@pytest.mark.usefixtures("here")
def test_all_stages_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(stages, "run_process", run_here)
    out = tmp_path / "out"
    assert gpu.main(["--device", "cpu", "--quick", "--out", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    names = [outcome["stage"] for outcome in report["stages"]]
    assert (names[0], names[-1]) == ("doctor", "same-weights")
    assert all(outcome["ok"] and outcome["figure"] for outcome in report["stages"])
    assert {f"{name}.log" for name in names[:-1]} <= {path.name for path in out.iterdir()}
    for name in ("training-eager", "training-graphs", "rollout-eager", "layers", "utilisation"):
        assert json.loads((out / f"{name}.json").read_text())["machine"]
    text = (out / "report.md").read_text()
    assert text in capsys.readouterr().out
    rows = re.findall(r"^\| (\S+) \| \d+\.\d \| .+ \| ok \|$", text, re.MULTILINE)
    assert rows == names
    assert "- device: CPU" in text


def stage(code: str, limit: float = 60.0, figure: str = "1 s") -> Stage:
    return Stage("t", ("-c", code), limit, lambda log: figure)


FOREVER = "import signal; signal.pause()"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (stage("print('a'); print('no luck'); raise SystemExit(3)"), "3: no luck"),
        (stage(FOREVER, 0.5), "0.5 s"),
        (stage("pass", figure=""), "figure"),
    ],
)
def test_a_stage_that_fails_is_listed_with_its_reason(made, reason, tmp_path) -> None:
    outcome = run_stage(made, tmp_path)
    assert not outcome.ok
    assert reason in outcome.reason


@pytest.mark.parametrize(
    ("made", "results"),
    [
        ([stage("raise SystemExit('a | b')"), stage("pass")], [r"failed: .* a \\\| b", "ok"]),
        ([stage(FOREVER), stage("pass")], ["failed: .*", "failed: .*--minutes 0.01.*"]),
    ],
    ids=["a failure", "no time left"],
)
def test_a_failure_and_a_lack_of_time_are_reported(
    made, results, tmp_path, monkeypatch, capsys
) -> None:
    """The others run after a failure; nothing starts after the time limit."""
    monkeypatch.setattr(gpu, "make_stages", lambda _: made)
    minutes = "0.01" if made[0].arguments[1] == FOREVER else "8"
    given = ["--device", "cpu", "--out", str(tmp_path / "out"), "--minutes", minutes]
    assert gpu.main(given) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| t")]
    for row, result in zip(rows, results, strict=True):
        assert re.search(rf"\| {result} \|$", row)


def test_compiled_and_plain_missions_differ_only_in_the_last_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = iter([Version.LOOPS, Version.PLAIN] * 2)

    def in_turn(*arguments: Any) -> Fusion:
        return Fusion(*arguments, next(versions))

    monkeypatch.setattr(environment, "Fusion", in_turn)
    config = load_config("params_test.yaml")
    assert 0 < max(checks.fly_on_both(config, CPU).values()) < checks.CLOSE
    assert checks.same_draws(config, CPU)[0]


def test_missions_that_differ_fail(monkeypatch) -> None:
    hear, calls = Radio.hear, []

    def deaf(radio: Radio, *rest: torch.Tensor) -> torch.Tensor:
        calls.append(radio)
        heard = hear(radio, *rest)
        return heard if radio is calls[0] else torch.zeros_like(heard)

    monkeypatch.setattr(Radio, "hear", deaf)
    passed, line = checks.same_draws(load_config("params_test.yaml"), CPU)
    assert not passed
    assert re.search(r"\bheard\b.* inf\b", line)


def test_a_wait_is_watched_for_after_the_first_steps(monkeypatch) -> None:
    said: list[str] = []

    class Steps:
        def __init__(self, *_: object) -> None: ...

        def make_steps(self, _: object) -> tuple[dict[str, float], dict[str, int]]:
            said.append("step")
            return {"critic_loss": 0.5}, {}

    monkeypatch.setattr(checks, "Trainer", Steps)
    monkeypatch.setattr(checks, "StageTimer", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", said.append)
    passed, line = checks.no_waiting(load_config("params_test"), torch.device("cuda", 0))
    assert passed
    assert "0.5" in line
    assert said == [*["step"] * 3, "error", "step", "step", "default"]


def test_all_tests_for_a_gpu_are_run_on_one() -> None:
    """All marked ones, and those with the fixture `device`, which has the GPU as its second."""
    folder = stages.ROOT / "tests"
    found = set()
    for path in folder.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^@pytest\.mark\.gpu|^def test\w*\([^)]*\bdevice\b(?!:? *: str)", text, re.M):
            found.add(str(path.relative_to(stages.ROOT)))
    assert set(stages.TESTS) == found


@pytest.mark.parametrize(
    ("digests", "ok"), [(("a", "a"), True), (("a", "b"), False), (("a", None), False)]
)
def test_weights_of_both_trainings_are_compared(digests, ok, tmp_path) -> None:
    names = ("run-eager", "run-graphs")
    for name, digest in zip(names, digests, strict=True):
        if digest is not None:
            (tmp_path / "runs" / name).mkdir(parents=True)
            text = json.dumps({"results": {"weights_sha256": digest}})
            (tmp_path / "runs" / name / "summary.json").write_text(text)
    outcomes = [Outcome(name, [], 1.0, True) for name in names]
    found = same_weights(tmp_path, outcomes)
    assert found is not None
    assert (found.ok, not found.reason) == (ok, ok)
    assert same_weights(tmp_path, outcomes[:1]) is None


def test_missing_packages_are_named_with_the_command_that_fetches_them(
    tmp_path, monkeypatch, capsys
) -> None:
    lacking = ("pydantic", "kornia", "cv2")
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in lacking else name)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "-d wheels kornia pydantic opencv-python-headless\n" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [("--only", "walk"), ("--out", "{tmp}"), ("--minutes", "0")])
def test_bad_input_is_one_line(wrong, tmp_path, refused) -> None:
    assert wrong[0] in refused(gpu, *(text.format(tmp=tmp_path) for text in wrong))


def test_a_check_refuses_bad_input(refused) -> None:
    assert "compute.device" in refused(checks, "no_waiting", "--device", "cuda:99")


def test_the_facts_of_a_gpu(monkeypatch) -> None:
    nvml = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlSystemGetCudaDriverVersion=lambda: 12080,
        nvmlSystemGetDriverVersion=lambda: "570.1",
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetName=lambda handle: f"GPU {handle}",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=24 * 2**30),
        nvmlDeviceGetClockInfo=lambda _, kind: 100 * kind,
        nvmlDeviceGetMaxClockInfo=lambda _, kind: 1000 * kind,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=device.index)
    )
    facts = machine.machine_facts("cuda:1")
    assert facts["driver"] == "570.1 (CUDA 12.8)"
    assert (facts["device"], facts["memory"]) == ("GPU GPU-1", "24 GiB")
    assert (facts["SM clock"], facts["memory clock"]) == ("100 of 1000 MHz", "200 of 2000 MHz")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "driver" not in machine.machine_facts("cuda")


def test_limits_add_up_to_a_bounded_run(tmp_path) -> None:
    made = stages.make_stages(stages.Settings("cuda", tmp_path, quick=False))
    assert len({one.name for one in made}) == len(made)
    assert sum(one.limit for one in made) <= 1800
