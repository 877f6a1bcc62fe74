"""Measure a training next to other programs: `python -m benchmarks.speed.busy_machine`.

Trains alone, twice at once, twice at once with a share of the cores each (as `--jobs 2` does), and
next to a process that uses one core. Each training has its own process. After one step that does
not count it makes steps until `--seconds-per-row` are over, at least one; it continues until the
others are timed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.helpers import processes
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.text import number_text, table_text
from benchmarks.helpers.trainings import time_steps, warmed_up
from marl_framework.config.model import Config
from marl_framework.stage_timer import StageTimer
from marl_framework.training.processes import thread_variables

ROWS = {
    "alone": (1, 0, False),
    "two at once": (2, 0, False),
    "two with --jobs 2": (2, 0, True),
    "beside a busy process": (1, 1, False),
}
"""Numbers of trainings and of busy processes, and whether trainings share out the cores."""

_LOOP = "while True: pass"


def measure(job: Job) -> dict[str, Any]:
    """Measure all rows.

    Returns:
        `settings` and `rows`: `name`, `agent_transitions_per_s` of each training, and their mean
        share of the speed of one alone.
    """
    rows: list[dict[str, Any]] = []
    for name, (trainings, loops, shared) in ROWS.items():
        with patch.dict(os.environ, thread_variables(trainings) if shared else {}):
            speeds = measure_row(job, trainings, loops)
        alone = rows[0]["agent_transitions_per_s"][0] if rows else speeds[0]
        share = mean(speeds) / alone
        rows.append({"name": name, "agent_transitions_per_s": speeds, "share_of_alone": share})
    return {"settings": {"seconds": job.options.seconds_per_row}, "rows": rows}


def measure_row(job: Job, trainings: int, loops: int) -> list[float]:
    """Return the transitions/s of trainings with different seeds, next to busy processes."""
    first = job.config.environment.seed
    busy = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(loops)]
    try:
        arguments = [
            (
                with_overrides(job.config, f"environment.seed={seed}"),
                job.device,
                job.options.seconds_per_row,
            )
            for seed in range(first, first + trainings)
        ]
        return processes.run_at_once(_train, arguments)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _train(config: Config, device: torch.device, seconds: float) -> float:
    """Train until all trainings of the row are timed; return this one's transitions/s."""
    config = with_overrides(config, "learning.update_interval=1")
    (trainer, _), timer = warmed_up(config, device), StageTimer(device)
    processes.wait_for_others()
    steps, used = 0, 0.0
    while used < seconds:
        ((duration, _),) = time_steps(trainer, timer, 1)
        steps, used = steps + 1, used + duration
    processes.repeat_until_all_are_here(lambda: trainer.make_steps(timer))
    return steps * config.schedule.transitions_per_step / used


def table(results: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (
            row["name"],
            ", ".join(f"{speed:,.0f}" for speed in row["agent_transitions_per_s"]),
            number_text(row["share_of_alone"], ".0%"),
        )
        for row in results["rows"]
    ]
    return table_text("Training", ("", "transitions/s of each", "share of alone"), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "speed.busy_machine",
        "Time a training alone, two at once, and one next to a busy process.",
        config="params_fast.yaml",
    )
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
