"""Trainings of a few steps: how long they take, and what the team can do after them.

The trainer itself makes `learning.training_steps`, without logs, checkpoints or validation; then
the validation missions are flown greedily. Metrics stay on the device until the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers.command_line import with_overrides
from benchmarks.helpers.hardware import (
    peak_memory,
    reset_peak_memory,
    utilisation,
    utilisation_monitor,
)
from benchmarks.helpers.networks_alone import NetworksAlone
from marl_framework.config.model import Config
from marl_framework.device import usable_cores
from marl_framework.evaluation.statistics import student_interval
from marl_framework.stage_timer import StageTimer
from marl_framework.training.hardware import cpu_seconds
from marl_framework.training.trainer import Trainer


def learn(
    config: Config, device: torch.device, note: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Train for `learning.training_steps`, after one step that warms up another trainer.

    Args:
        config: mission, networks, schedule.
        device: where everything lives.
        note: shows a line now and then.

    Returns:
        A row: `seconds` in all and of `rollout` and `update`, `transitions`, `updates` of all
        optimisers, `flops`, `cpu_seconds`, `peak_memory_bytes`, figures of
        `utilisation`, `metrics` of each round of updates by name, and `validation`: mean and
        standard error of what its missions measure.
    """
    flops = _warmed_up(config, device)
    reset_peak_memory(device)
    trainer, timer = Trainer(config, device), StageTimer(device)
    records: list[dict[str, Tensor | float]] = []
    steps = config.learning.training_steps
    cpu = cpu_seconds()
    with utilisation_monitor(device) as monitor:
        while trainer.algorithm.training_steps < steps:
            records.append(trainer.training_step(timer)[0])
            note(f"training step {trainer.algorithm.training_steps} of {steps}")
        seconds = timer.wall()
    stages = timer.seconds()
    flown = trainer.fly_validation()
    return {
        "seconds": seconds,
        "rollout_seconds": stages["rollout"],
        "update_seconds": stages["update"],
        "transitions": steps * config.schedule.transitions_per_step,
        "updates": _updates(trainer.algorithm.state_dict()),
        "flops": flops * steps,
        "cpu_seconds": cpu_seconds() - cpu,
        "cores": usable_cores(),
        "peak_memory_bytes": peak_memory(device),
        **utilisation(monitor),
        "metrics": {name: [float(r[name]) for r in records] for name in records[0]},
        "validation": {
            name: {
                "mean": float(values.mean()),
                "standard_error": float(values.std() / len(values) ** 0.5),
            }
            for name, values in flown.items()
        },
    }


def _warmed_up(config: Config, device: torch.device) -> int:
    """Make one training step, for what is made or chosen once; return the operations of one."""
    single = with_overrides(config, "learning.update_interval=1")
    Trainer(single, device).training_step(StageTimer(device))
    return NetworksAlone(single, device).flops()


def _updates(state: Mapping[str, Any]) -> int:
    """Return the updates that all optimisers in an algorithm's state have made."""
    optimizers = [
        part for part in state.values() if isinstance(part, Mapping) and "param_groups" in part
    ]
    return sum(int(next(iter(part["state"].values()))["step"]) for part in optimizers)


def last_fifth(values: Sequence[float]) -> float:
    """Return the mean of the last fifth of some values, at least of the last one."""
    kept = values[-max(len(values) // 5, 1) :]
    return sum(kept) / len(kept)


def learn_from_seeds(
    config: Config, device: torch.device, seeds: int, name: str
) -> list[dict[str, Any]]:
    """Train once for each of `seeds` seeds, from `environment.seed` on; return what `learn` does.

    Args:
        config: see `learn`.
        device: where everything lives.
        seeds: number of trainings.
        name: of the row, for the lines that standard error shows meanwhile.
    """
    found = []
    for seed in range(config.environment.seed, config.environment.seed + seeds):
        note = _progress(f"{name}, seed {seed}")
        found.append(learn(with_overrides(config, f"environment.seed={seed}"), device, note))
    return found


def validation_columns(trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `return` and `roi_entropy`, means over seeds, and `returns` of each seed."""
    returns = [one["validation"]["return"]["mean"] for one in trainings]
    return {
        "return": sum(returns) / len(returns),
        "returns": returns,
        "roi_entropy": mean_of(trainings, lambda one: one["validation"]["roi_entropy"]["mean"]),
    }


def return_errors(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Return half the interval over seeds of each row's returns, for error bars."""
    intervals = [student_interval(returns) for returns in rows]
    halves = [(ends[1] - ends[0]) / 2 for ends in intervals if ends is not None]
    return halves if len(halves) == len(rows) else None


def number_of_seeds(seeds: int) -> str:
    """Return what a table's title says of the seeds."""
    return "1 seed" if seeds == 1 else f"{seeds} seeds, with 95 % intervals over them"


def _progress(name: str) -> Callable[[str], None]:
    """Return a function that shows lines about a row on standard error, in one place."""
    end = "\r" if sys.stderr.isatty() else "\n"
    return lambda text: print(f"{name}: {text}", end=end, file=sys.stderr, flush=True)


def mean_of(rows: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], float]) -> float:
    """Return the mean over rows of a number read from each."""
    return sum(read(row) for row in rows) / len(rows)
