"""Does a training survive being killed? `python -m tests.soak.kill_and_resume --count 25`.

Each of the trainings of `params_test.yaml` is killed with SIGKILL at a random moment and resumed,
again and again until it ends by itself. Then its weights and results must equal those of a run
that was never interrupted, every checkpoint must be readable, and no other file may be left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_framework.command_line import Parser
from marl_framework.runs.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ("logging.checkpoint_interval=1", "logging.checkpoints_kept=2")
_MOST_KILLS = 200
_READY = "run folder:"
_MAY_DIFFER = {"uncommitted.diff"}  # depends on when somebody edits the checkout


def command(runs: Path, name: str) -> list[str]:
    """Return the command line that trains or resumes a run."""
    settings = (f"logging.directory={runs}", *CHECKPOINTS)
    return [
        *(sys.executable, "-u", "-m", "marl_framework.main", "--config", "params_test.yaml"),
        *("--device", "cpu", "--run-name", name, "--resume"),
        *(part for text in settings for part in ("--set", text)),
    ]


def train(runs: Path, name: str, delay: float | None) -> tuple[bool, float]:
    """Train or resume; return whether it ended by itself, and how long it trained [s].

    Args:
        runs: folder of the runs.
        name: of the run.
        delay: seconds until the kill: from the start of the training, or, where negative, from
            the start of the process; None for no kill.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command(runs, name), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        if delay is None or delay >= 0:
            for line in process.stdout:
                if line.decode().startswith(_READY):
                    break
        began = time.monotonic()
        if delay is not None:
            time.sleep(abs(delay))
            process.kill()
        process.communicate()
        seconds = time.monotonic() - began
        if process.returncode not in (0, -signal.SIGKILL):
            errors.seek(0)
            raise SystemExit(f"{name}: exit code {process.returncode}: {errors.read().decode()}")
    return process.returncode == 0, seconds


def check(run: Path, whole: Path) -> list[str]:
    """Return what is wrong with a finished run, compared with one that was never killed."""
    problems = []
    if results(run) != results(whole):
        problems.append(f"{run.name}: results differ: {results(run)}")
    for path in sorted(run.joinpath("checkpoints").iterdir()):
        try:
            load_checkpoint(path)
        except ValueError as error:
            problems.append(f"{run.name}: {error}")
    found, expected = ({p.name for p in folder.iterdir()} - _MAY_DIFFER for folder in (run, whole))
    if found != expected:
        problems.append(f"{run.name}: holds {sorted(found)}, not {sorted(expected)}")
    same = sorted(p.name for p in (run / "checkpoints").iterdir())
    if same != sorted(p.name for p in (whole / "checkpoints").iterdir()):
        problems.append(f"{run.name}: checkpoints are {same}")
    return problems


def results(run: Path) -> Any:
    """Return the results in a run's summary."""
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))["results"]


def kill_and_resume(runs: Path, count: int, seed: int, most_kills: int = _MOST_KILLS) -> list[str]:
    """Kill and resume trainings; return what went wrong.

    Args:
        runs: empty folder for the runs.
        count: number of trainings.
        seed: of the moments.
        most_kills: of one training; then it is left in peace.
    """
    moments = random.Random(seed)
    _, seconds = train(runs, "whole", None)
    problems: list[str] = []
    kills = 0
    for number in range(count):
        name, done = f"killed-{number}", False
        for start in range(most_kills + 1):
            # One in five dies anywhere in its start, the others while they train.
            early = moments.random() < 0.2
            delay = -moments.uniform(0.01, 4) if early else moments.uniform(0, 1.2 * seconds)
            done, _ = train(runs, name, delay if start < most_kills else None)
            if done:
                break
            kills += 1
        wrong = check(runs / name, runs / "whole")
        problems += wrong
        print(f"{name}: {start} kills, {'; '.join(wrong) or 'ok'}", flush=True)
    extra = {p.name for p in runs.iterdir()} - {"whole", *(f"killed-{n}" for n in range(count))}
    if extra:
        problems.append(f"left behind: {sorted(extra)}")
    print(f"{count} trainings, {kills} kills, {len(problems)} problems")
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 where every training survived."""
    parser = Parser(description=__doc__)
    parser.add_argument("--count", type=int, default=25, help="trainings (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        problems = kill_and_resume(Path(folder) / "runs", options.count, options.seed)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
