"""What a training keeps of its speed beside others: `python -m benchmarks.speed.busy_machine`.

Trains alone, twice at once, twice at once with a share of the cores each (as `--jobs 2` does), and
beside a process that uses one core. Each training has a process of its own and makes steps until
`--seconds-per-row` are over, at least one, after one that does not count; it goes on until all
others are timed. With `--threads-share operations` PyTorch divides every operation among its
threads, as it does by itself: see `marl_framework.algorithms.threads`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, with_overrides
from benchmarks.helpers.harness import number_text
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.networks.convolutional import ConvolutionalNetwork
from marl_framework.stage_timer import StageTimer
from marl_framework.training.jobs import share_of_cores, threads_of_children
from marl_framework.training.trainer import Trainer

BATCH, OPERATIONS = "batch", "operations"
ROWS = {
    "alone": (1, 0, False),
    "two at once": (2, 0, False),
    "two with --jobs 2": (2, 0, True),
    "beside a busy process": (1, 1, False),
}
"""Numbers of trainings and of busy processes, and whether trainings share out the cores."""

_LOOP = "while True: pass"
_shared: dict[str, Any] = {}  # of the processes of a row: what they wait for


def run(config: Config, device: torch.device, seconds: float, threads_share: str) -> dict[str, Any]:
    """Measure all rows.

    Args:
        config: mission, networks and schedule; two trainings at once have different seeds.
        device: where everything lives.
        seconds: for which a training is timed.
        threads_share: what PyTorch's threads divide, `batch` or `operations`.

    Returns:
        `settings`, `machine` and `rows`: `name`, `agent_transitions_per_s` of each training, and
        the mean of their shares of what one alone makes.
    """
    machine = harness.announce_machine(device)
    rows: list[dict[str, Any]] = []
    for name, (trainings, loops, shared) in ROWS.items():
        with threads_of_children(share_of_cores(trainings)) if shared else nullcontext():
            speeds = measure(config, device, trainings, loops, seconds, threads_share)
        alone = rows[0]["agent_transitions_per_s"][0] if rows else speeds[0]
        rows.append(
            {
                "name": name,
                "agent_transitions_per_s": speeds,
                "share_of_alone": mean(speeds) / alone,
            }
        )
    settings = {
        "seconds": seconds,
        "threads_share": threads_share,
        "configuration": config_to_dict(config),
    }
    return {"settings": settings, "machine": machine, "rows": rows}


def measure(
    config: Config,
    device: torch.device,
    trainings: int,
    loops: int,
    seconds: float,
    threads_share: str,
) -> list[float]:
    """Return the transitions/s of trainings at once, beside busy processes."""
    context = multiprocessing.get_context("spawn")
    shared = {
        "ready": context.Barrier(trainings),
        "left": context.Value("i", trainings),
        "threads_share": threads_share,
        "device": device,
    }
    busy = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(loops)]
    seeds = range(config.environment.seed, config.environment.seed + trainings)
    with ProcessPoolExecutor(trainings, context, _receive, (shared,)) as pool:
        try:
            configs = [with_overrides(config, f"environment.seed={seed}") for seed in seeds]
            return list(pool.map(_train, configs, [seconds] * trainings))
        finally:
            for process in busy:
                process.kill()
                process.wait()


def _receive(shared: dict[str, Any]) -> None:
    """Start a process of a row."""
    _shared.update(shared)


def _train(config: Config, seconds: float) -> float:
    """Train until all trainings of the row are timed; return this one's transitions/s."""
    ConvolutionalNetwork.independent_rows = _shared["threads_share"] == BATCH
    config = with_overrides(config, "learning.update_interval=1")
    trainer, timer = Trainer(config, _shared["device"]), StageTimer(_shared["device"])
    trainer.training_step(timer)
    _shared["ready"].wait()
    timer.reset()
    steps, used = 0, 0.0
    while used < seconds:
        trainer.training_step(timer)
        steps, used = steps + 1, timer.wall()
    left = _shared["left"]
    with left.get_lock():
        left.value -= 1
    while left.value:
        trainer.training_step(timer)
    return steps * config.schedule.transitions_per_step / used


def table(found: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (
            row["name"],
            ", ".join(f"{speed:,.0f}" for speed in row["agent_transitions_per_s"]),
            number_text(row["share_of_alone"], ".0%"),
        )
        for row in found["rows"]
    ]
    title = f"Training, threads share the {found['settings']['threads_share']}"
    return harness.table_text(title, ("", "transitions/s of each", "share of alone"), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "speed.busy_machine",
        "Time a training alone, two at once, and one beside a busy process.",
        config="params_fast.yaml",
    )
    parser.add_argument(
        "--threads-share",
        choices=(BATCH, OPERATIONS),
        default=BATCH,
        help="what PyTorch's threads divide among them (batch)",
    )
    return parser.publish(parser.parse_args(arguments), _measure, table)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    return run(config, device, options.seconds_per_row, options.threads_share)


if __name__ == "__main__":
    sys.exit(main())
