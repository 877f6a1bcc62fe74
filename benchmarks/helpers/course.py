"""What benchmarks share that let a team learn for a while: the course of it, and peaks.

A course is `n_episodes` training steps by the trainer itself, without logs, checkpoints or
validation; after it the validation missions are flown greedily. Metrics stay on the device until
the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import usable_cores
from benchmarks.training import NetworksAlone, peak_memory, reset_peak_memory, with_overrides
from marl_framework.config.model import Config
from marl_framework.device import synchronize
from marl_framework.evaluation.flight import validate
from marl_framework.training.hardware import HardwareMonitor, Reader, gpu_readers
from marl_framework.training.timing import StageTimer
from marl_framework.training.trainer import Trainer

_PERIOD = 0.2  # seconds between samples of what the machine reports
_CPU_TIMES = Path("/proc/stat")


# What the machine can do, and what it says that it does -----------------------------------------


def peak_flops(device: torch.device, precision: torch.dtype, repeats: int = 5) -> float:
    """Return the floating-point operations a second of large matrix products, the best of some.

    Args:
        device: that computes.
        precision: of the products, that of the networks.
        repeats: products that are timed.
    """
    side = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(side, side, device=device).to(precision) for _ in range(2))
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        a @ b
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 2 * side**3 / min(times[1:])


class CpuReader:
    """Share of all cores that are busy, by whatever program: what system monitors show."""

    def __init__(self) -> None:
        self._idle, self._all = self._read()

    def __call__(self) -> dict[str, float]:
        """Return the share since the last call."""
        idle, total = self._read()
        passed = total - self._all
        share = 1 - (idle - self._idle) / passed if passed else 0.0
        self._idle, self._all = idle, total
        return {"utilization": share}

    @staticmethod
    def _read() -> tuple[int, int]:
        first = _CPU_TIMES.read_text(encoding="ascii").partition("\n")[0]
        ticks = [int(text) for text in first.split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)


def utilisation_monitor(device: torch.device) -> HardwareMonitor:
    """Return a monitor of what the machine reports as its utilisation, and what of it is real.

    Figures: `utilization` of the device (0 to 1); on GPUs that count them also `gpu_sm_activity`
    and `gpu_sm_occupancy`.
    """
    readers: list[Reader] = [CpuReader()]
    if device.type == "cuda":
        readers = [_renamed(reader) for reader in gpu_readers(device)]
    return HardwareMonitor(device, Path(), _PERIOD, readers)


def _renamed(reader: Reader) -> Reader:
    return lambda: {
        ("utilization" if name == "gpu_utilization" else name): value
        for name, value in reader().items()
    }


def utilisation(monitor: HardwareMonitor) -> dict[str, float | None]:
    """Return the figures of a monitor as a row has them; None where the machine has none."""
    found = monitor.summary()
    names = {"utilization": "reported", "gpu_sm_activity": "sm_activity",
             "gpu_sm_occupancy": "sm_occupancy"}  # fmt: skip
    row: dict[str, float | None] = {
        ours: found.get(name, {}).get("mean") for name, ours in names.items()
    }
    return {**row, "reported_peak": found.get("utilization", {}).get("max")}


def cpu_seconds() -> float:
    """Return the CPU time of this process so far [s]."""
    times = os.times()
    return times.user + times.system


# A while of learning --------------------------------------------------------------------------


def learn(
    config: Config, device: torch.device, note: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Train for `n_episodes` training steps, after one that warms up another trainer.

    Args:
        config: mission, networks, schedule.
        device: where everything lives.
        note: shows a line now and then.

    Returns:
        A row: `seconds` in all and of `rollout` and `update`, `transitions`, `updates` of the
        actor's and the critic's weights, `flops`, `cpu_seconds`, `peak_memory_bytes`, figures of
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
    flown = validate(trainer._validation, trainer._planner)
    return {
        "seconds": seconds,
        "rollout_seconds": stages["rollout"],
        "update_seconds": stages["update"],
        "transitions": steps * config.transitions_per_step,
        "updates": _updates(trainer.algorithm.actor_optimizer)
        + _updates(trainer.algorithm.critic_optimizer),
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
            if name in ("roi_entropy", "f1", "return")
        },
    }


def _warmed_up(config: Config, device: torch.device) -> int:
    """Make one training step, for what is made or chosen once; return the operations of one."""
    single = with_overrides(config, "learning.update_interval=1")
    trainer = Trainer(single, device)
    trainer.training_step(StageTimer(device))
    return NetworksAlone(trainer).flops()


def _updates(optimizer: torch.optim.Optimizer) -> int:
    return int(next(iter(optimizer.state.values()))["step"])


def last_fifth(values: Sequence[float]) -> float:
    """Return the mean of the last fifth of some values, at least of the last one."""
    kept = values[-max(len(values) // 5, 1) :]
    return sum(kept) / len(kept)


def progress(name: str) -> Callable[[str], None]:
    """Return a function that shows lines about a row on standard error, in one place."""
    end = "\r" if sys.stderr.isatty() else "\n"
    return lambda text: print(f"{name}: {text}", end=end, file=sys.stderr, flush=True)


def mean_of(rows: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], float]) -> float:
    """Return the mean over rows of a number read from each."""
    return sum(read(row) for row in rows) / len(rows)
