"""What trainings gain together: `python -m benchmarks.speed.together [--runs N]`.

Times training steps of several seeds: one training after the other, two at once in processes
(`--jobs 2`), and in one process (`--together`), their networks one after the other or stacked. The
first and the last two take turns, so that all see the same machine. A second table counts what a
GPU would be asked for: `helpers.pretend_gpu` runs the steps on tensors that know their shapes
alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, check_between, with_overrides
from benchmarks.helpers.harness import number_text
from benchmarks.helpers.pretend_gpu import GPU, PretendGpu, pretend_gpu
from benchmarks.speed import busy_machine
from benchmarks.speed.kernel_budget import operator_costs
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import synchronize
from marl_framework.stage_timer import StageTimer
from marl_framework.training.jobs import share_of_cores, threads_of_children
from marl_framework.training.joint_step import JointStep
from marl_framework.training.trainer import Trainer

AFTER, JOBS, TOGETHER, STACKED = "one after the other", "--jobs 2", "--together", "… stacked"
SHARES = (1, 16)
"""The missions and batches of the params file are divided by these."""
RUNS = (2, 8, 16)
"""Trainings at once that are counted."""
_CPU = torch.device("cpu")


def run(config: Config, device: torch.device, seconds: float, runs: int) -> dict[str, Any]:
    """Measure and count all rows.

    Args:
        config: mission, networks and schedule.
        device: where everything lives.
        seconds: time budget of each row.
        runs: trainings at once.

    Returns:
        `settings`, `machine`, `rows` with `missions` and `batch` of a training, `way`, and
        `agent_transitions_per_s` of all together; on a CPU also `gpu` with `missions`, `batch`,
        `runs`, and `kernels` and `megabytes` of a training step of all, `apart` and `stacked`.
    """
    machine = harness.announce_machine(device)
    rows, gpu = [], []
    for share in SHARES:
        chosen = _smaller(config, share)
        size = {"missions": chosen.environment.num_envs, "batch": chosen.learning.batch_size}
        speeds = _speeds(chosen, device, seconds, runs)
        rows += [{**size, "way": way, "agent_transitions_per_s": speeds[way]} for way in speeds]
        if device.type == "cpu":  # a GPU would take part
            gpu += [{**size, **row} for row in _counts(chosen)]
    settings = {"seconds": seconds, "runs": runs, "configuration": config_to_dict(config)}
    return {"settings": settings, "machine": machine, "rows": rows, "gpu": gpu}


def _smaller(config: Config, share: int) -> Config:
    """Return a share of the missions and of the batches."""
    numbers = {
        "environment.num_envs": config.environment.num_envs,
        "learning.batch_size": config.learning.batch_size,
    }
    return with_overrides(config, *(f"{k}={max(v // share, 1)}" for k, v in numbers.items()))


def _trainers(config: Config, device: torch.device, runs: int, stack: str) -> list[Trainer]:
    first = config.environment.seed
    return [
        Trainer(
            with_overrides(config, f"environment.seed={seed}", f"compute.stack_networks={stack}"),
            device,
        )
        for seed in range(first, first + runs)
    ]


def _speeds(config: Config, device: torch.device, seconds: float, runs: int) -> dict[str, float]:
    """Return the transitions/s of all trainings, by the way that they are made."""
    apart = _trainers(config, device, runs, "never")
    ways: dict[str, Callable[[list[StageTimer]], object]] = {
        AFTER: lambda timers: [
            trainer.training_step(timer) for trainer, timer in zip(apart, timers, strict=True)
        ],
        TOGETHER: JointStep(_trainers(config, device, runs, "never")),
        STACKED: JointStep(_trainers(config, device, runs, "always")),
    }
    timers = [StageTimer(device) for _ in range(runs)]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for step in ways.values():  # makes what is made once
        step(timers)
    used = 0.0
    while used < seconds * len(ways):
        for way, step in ways.items():
            synchronize(device)
            start = time.perf_counter()
            step(timers)
            synchronize(device)
            times[way].append(time.perf_counter() - start)
            used += times[way][-1]
    transitions = runs * config.schedule.transitions_per_step
    found = {way: transitions / median(each) for way, each in times.items()}
    with threads_of_children(share_of_cores(2)):
        jobs = sum(busy_machine.measure(config, device, 2, 0, seconds, busy_machine.BATCH))
    return {AFTER: found.pop(AFTER), JOBS: jobs, **found}


def _counts(config: Config) -> list[dict[str, Any]]:
    """Return what training steps of several runs ask of a GPU."""
    config = with_overrides(
        config,
        "compute.device=auto",
        "compute.precision=bfloat16",
        "compute.compile=true",
        "compute.cuda_graphs=false",
    )
    (kernels, moved), rows = _count(config, 1), []
    for runs in RUNS:
        stacked = _count(config, runs)
        rows.append(
            {
                "runs": runs,
                "kernels": {"apart": runs * kernels, "stacked": stacked[0]},
                "megabytes": {"apart": runs * moved, "stacked": stacked[1]},
            }
        )
    return rows


def _count(config: Config, runs: int) -> tuple[int, float]:
    """Return the kernels and megabytes of a training step of all runs, stacked if several."""
    gpu = PretendGpu(values=False, costs=operator_costs(config))
    timers = [StageTimer(_CPU) for _ in range(runs)]
    with pretend_gpu(gpu, triton=True):
        trainers = _trainers(config, GPU, runs, "auto")
        step = JointStep(trainers) if runs > 1 else None
        with gpu.stage("step"):
            if step is None:
                trainers[0].training_step(timers[0])
            else:
                step(timers)
    return gpu.kernels["step"], gpu.bytes["step"] / 1e6


def speeds(found: Mapping[str, Any]) -> str:
    """Return how fast trainings are, as text."""
    base = {row["missions"]: row for row in found["rows"] if row["way"] == AFTER}
    lines = [
        (
            f"{row['missions']}, {row['batch']}" if row["way"] == AFTER else "",
            row["way"],
            number_text(row["agent_transitions_per_s"], ",.0f"),
            number_text(
                row["agent_transitions_per_s"] / base[row["missions"]]["agent_transitions_per_s"],
                ".2f",
            ),
        )
        for row in found["rows"]
    ]
    header = ("missions, batch", "", "transitions/s of all", "times one after the other")
    return harness.table_text(f"{found['settings']['runs']} trainings", header, lines)


def counts(found: Mapping[str, Any]) -> str:
    """Return what a GPU is asked for, as text."""
    lines = [
        (
            f"{row['missions']}, {row['batch']}",
            str(row["runs"]),
            *(
                f"{row[unit][way]:,.0f}"
                for unit in ("kernels", "megabytes")
                for way in ("apart", "stacked")
            ),
        )
        for row in found["gpu"]
    ]
    header = ("missions, batch", "runs", "kernels apart", "stacked", "MB apart", "stacked")
    return harness.table_text("A training step of all runs on a GPU", header, lines)


def table(found: Mapping[str, Any]) -> str:
    """Return the results as text."""
    return speeds(found) + (counts(found) if found["gpu"] else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "speed.together",
        "Time trainings of several seeds apart and together.",
        config="params_fast.yaml",
    )
    parser.add_argument("--runs", type=int, default=8, metavar="N", help="trainings at once (8)")
    return parser.publish(parser.parse_args(arguments), _measure, table)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    check_between("--runs", options.runs, 2, 64)
    return run(config, device, options.seconds_per_row, options.runs)


if __name__ == "__main__":
    sys.exit(main())
