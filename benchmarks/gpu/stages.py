"""The stages of a GPU run: command, time limit and key figure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CASES = "tests/data/replay"
TESTS = (
    *(f"tests/{name}.py" for name in ("test_device", "test_stage_timer")),
    *("tests/planners/test_planners.py", "tests/observations/test_completion.py"),
    "tests/exporting/test_portable.py",
    *(f"tests/training/test_{name}.py" for name in ("cuda_graphs", "hardware", "logging")),
    "tests/kernels/test_triton.py",
    *(f"tests/mission/terrains/test_{name}.py" for name in ("raster", "mixture", "rectangles")),
    *("tests/benchmarks/reference/test_replay.py", "tests/runs/test_checkpoint.py"),
)
"""Files with tests for a GPU; others need packages that may be missing on a GPU's machine."""
GRAPHS = {"eager": "false", "graphs": "true"}
"""Values of `compute.cuda_graphs` by the end of a stage's name."""
_ENDS = 10  # seconds between SIGTERM and SIGKILL
_MOST_TEXT = 200

Figure = Callable[[Path], str]
"""Reads the key figure of a stage; called with its log."""
Show = Callable[[Any], str]
"""Returns the key figure of a JSON's content."""


@dataclass(frozen=True)
class Settings:
    """Options of a GPU run."""

    device: str
    out: Path
    quick: bool


@dataclass(frozen=True)
class Stage:
    """One process of a GPU run."""

    name: str
    arguments: tuple[str, ...]
    """Arguments of Python."""
    limit: float
    """Time limit [s]."""
    figure: Figure


@dataclass
class Outcome:
    """Result of a stage."""

    stage: str
    command: list[str]
    seconds: float
    ok: bool
    figure: str = ""
    reason: str = ""


def make_stages(settings: Settings) -> list[Stage]:
    """Return all stages: figures first, because time may end; then slower checks and tests."""
    device, out, quick = settings.device, settings.out, settings.quick
    params = "params_test.yaml" if quick else "params_gpu.yaml"
    on = ("--config", params, "--device", device)

    def bench(
        name: str,
        kind: str,
        show: Show,
        *arguments: str,
        config: str = params,
        limit: int = 90,
        row: float = 3,
    ) -> Stage:
        seconds = ("--seconds-per-row", "0.001" if quick else f"{row:g}")
        target = out / f"{name}.json"
        asked = ("--config", config, "--device", device, *seconds, "--out", str(target), *arguments)
        return Stage(name, ("-m", f"benchmarks.speed.{kind}", *asked), limit, _of(target, show))

    def check(name: str, limit: int) -> Stage:
        arguments = ("-m", "benchmarks.gpu.checks", name, *on)
        return Stage(name.replace("_", "-"), arguments, limit, _last_line)

    doctor = ("--config", params, "--json", "--set", f"compute.device={device}")
    stages = [
        Stage("doctor", ("-m", "marl_framework.doctor", *doctor), 60, _doctor),
        check("same_draws", 60),
        check("kernel_profile", 60),
    ]
    steps = ("--steps", "1" if quick else "5")
    paper = params if quick else "params.yaml"
    for graphs, value in GRAPHS.items():
        recorded = (*steps, "--set", f"compute.cuda_graphs={value}")
        published, smaller = (
            (*recorded, "--set", f"learning.batch_size={size}") for size in (600, 128)
        )
        stages += [
            bench(f"training-{graphs}", "training", _training, *recorded),
            bench(
                f"paper-{graphs}", "training", _whole_schedule, *published, config=paper, limit=60
            ),
            bench(f"batch-128x5-{graphs}", "training", _training, *smaller, config=paper, limit=45),
        ]
    for graphs, value in GRAPHS.items():
        # Memory takes more processes.
        memory = () if graphs == "eager" and not quick else ("--no-memory",)
        flown = (
            *("--num-envs", "1,2" if quick else "64,512,2048", "--policy", "actor"),
            *(*memory, "--set", f"compute.cuda_graphs={value}"),
        )
        stages.append(bench(f"rollout-{graphs}", "rollout", _ROLLOUT, *flown, limit=120))
        planned = ("--missions", "1" if quick else "1,50", "--set", f"compute.cuda_graphs={value}")
        stages.append(bench(f"planners-{graphs}", "planners", _planners, *planned, limit=60, row=1))
    stages.append(bench("layers", "layers", _layers, limit=30, row=0.05))
    agents = ("--agents", "1" if quick else "64,1024")
    many = ("--processes", "1", "--batch", "8", "--steps", "1") if quick else ()
    stages += [
        bench("transformations", "transformations", _TRANSFORMATIONS, *agents, limit=150, row=0.3),
        bench("utilisation", "utilisation", _UTILISATION, *many, limit=120),
        check("no_waiting", 60),
    ]
    replay = (CASES, "--device", device)
    stages.append(
        Stage("recorded-steps", ("-m", "benchmarks.reference.replay", *replay), 60, _last_line)
    )
    for graphs, value in GRAPHS.items():
        name = f"run-{graphs}"
        trained = (
            *("--run-name", name, "--set", f"logging.directory={out / 'runs'}"),
            *("--set", f"learning.training_steps={2 if quick else 20}"),
            *("--set", "evaluation.interval=0", "--set", f"compute.cuda_graphs={value}"),
            # cuDNN must choose the same algorithms in both trainings.
            *("--set", "compute.deterministic=true"),
        )
        figure = _of(out / "runs" / name / "summary.json", _run_summary)
        stages.append(Stage(name, ("-m", "marl_framework.main", *on, *trained), 60, figure))
    tests = ("-q", "-m", "gpu", "-p", "no:cacheprovider", *(TESTS[:1] if quick else TESTS))
    return [*stages, Stage("tests", ("-m", "pytest", *tests), 300, _last_line)]


def run_stage(stage: Stage, out: Path) -> Outcome:
    """Run a stage within its time limit; its output goes to a log."""
    log = out / f"{stage.name}.log"
    start = time.monotonic()
    code = run_process(stage.arguments, log, stage.limit)
    outcome = Outcome(stage.name, ["python", *stage.arguments], time.monotonic() - start, code == 0)
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        outcome.figure = stage.figure(log)[:_MOST_TEXT]
    if code is None:
        outcome.reason = f"took longer than {stage.limit} s"
    elif code:
        outcome.reason = f"exit code {code}: {_last_line(log)}"[:_MOST_TEXT]
    elif not outcome.figure:
        outcome.ok, outcome.reason = False, "left no key figure"
    return outcome


def run_process(arguments: Sequence[str], log: Path, limit: float) -> int | None:
    """Run Python in the checkout, with its output in a log.

    Args:
        arguments: of Python.
        log: new file.
        limit: seconds until the process and its children are ended.

    Returns:
        The exit code; None after the limit.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to end its children too
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if process.poll() is not None:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS)


def same_weights(out: Path, outcomes: Sequence[Outcome]) -> Outcome | None:
    """Compare the weights of the recorded and the eager training; None if one was not run."""
    names = [f"run-{graphs}" for graphs in GRAPHS]
    if not set(names) <= {outcome.stage for outcome in outcomes}:
        return None
    results = []
    for name in names:
        with suppress(OSError, ValueError, KeyError):
            path = out / "runs" / name / "summary.json"
            results.append(json.loads(path.read_text())["results"]["weights_sha256"])
    ok = len(results) == 2 and results[0] == results[1]
    figure = " and ".join(str(digest)[:12] for digest in results)
    reason = "the weights differ" if len(results) == 2 else "a training left no weights"
    return Outcome("same-weights", [], 0.0, ok, figure, "" if ok else reason)


# Key figures ------------------------------------------------------------------------------


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")


def _doctor(log: Path) -> str:
    text = log.read_text(encoding="utf-8")
    checks: list[dict[str, Any]] = json.loads(text[text.index("{") :])["checks"]
    kernels = [c["found"] for c in checks if c["name"] == "window kernels"]
    failed = [f"✗ {c['name']}: {c['found']}" for c in checks if not c["ok"]]
    return "; ".join([*failed, *(f"window kernels: {text}" for text in kernels)])


def _of(path: Path, show: Show) -> Figure:
    """Return a function that reads the key figure from a JSON of a stage."""
    return lambda _: show(json.loads(path.read_text(encoding="utf-8")))


def _training(results: Any) -> str:
    return (
        f"{1e3 * results['seconds_per_training_step']:,.1f} ms a training step, "
        f"{results['agent_transitions_per_s']:,.0f} transitions/s, "
        f"{results['peak_memory_bytes'] / 1e9:,.2f} GB"
    )


def _whole_schedule(results: Any) -> str:
    steps = results["settings"]["configuration"]["learning"]["training_steps"]
    minutes = steps * results["seconds_per_training_step"] / 60
    return f"{_training(results)}, {minutes:,.1f} min for {steps:,} training steps"


def _best(key: str, form: str) -> Show:
    """Return a function that shows the row with the largest value of a key."""

    def show(results: Any) -> str:
        row = max((row for row in results["rows"] if row[key]), key=lambda row: row[key])
        return form.format(**row)

    return show


_ROLLOUT = _best(
    "joint_steps_per_s",
    "{joint_steps_per_s:,.0f} joint steps/s with {num_envs:,} missions, "
    "{share_of_bandwidth:.1%} of the memory's bandwidth",
)
_TRANSFORMATIONS = _best(
    "observations_per_second", "{observations_per_second:,.0f} observations/s ({backend})"
)
_UTILISATION = _best("share_of_peak", "{share_of_peak:.1%} of the peak ({name})")


def _layers(results: Any) -> str:
    spent = results["seconds_of_convolutions"]
    return "forward and backward of the convolutions: " + ", ".join(
        f"{1e3 * seconds:,.2f} ms as {way}" for way, seconds in spent.items()
    )


def _planners(results: Any) -> str:
    rows = [row for row in results["rows"] if row["planner"] == "search"]
    return "search: " + ", ".join(
        f"{1e3 * row['seconds_move']:,.2f} ms a move of a mission, {row['missions']} at once"
        for row in rows
    )


def _run_summary(summary: Any) -> str:
    results = summary["results"]
    return f"{results['training_steps']} steps, weights {results['weights_sha256'][:12]}"
