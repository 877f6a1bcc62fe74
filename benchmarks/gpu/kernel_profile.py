"""Where a training step spends the device's time: a table by kernel.

python -m benchmarks.gpu.kernel_profile [--device cuda:1]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.command_line import run_check
from benchmarks.helpers.harness import table_text
from marl_framework.config.model import Config
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

_WARM_UP = 3  # training steps: kernels are compiled, chosen and recorded in them
_SHOWN = 25
_LONGEST = 60  # characters of a name


def record(config: Config, device: torch.device) -> list[tuple[str, int, float]]:
    """Return (name, calls, seconds on the device) of a training step's kernels, longest first."""
    trainer = Trainer(config, device)
    timer = StageTimer(device)
    for _ in range(_WARM_UP):
        trainer.training_step(timer)
    timer.wall()  # waits for the device
    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind], acc_events=True) as recorded:
        trainer.training_step(timer)
        timer.wall()

    def seconds(event: Any) -> float:
        spent = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        return float(spent) * 1e-6

    events = [(e.key, e.count, seconds(e)) for e in recorded.key_averages()]
    return sorted((e for e in events if e[2] > 0), key=lambda e: -e[2])


def check(config: Config, device: torch.device) -> tuple[bool, str]:
    """Print the table; sum up what takes longest."""
    kernels = record(config, device)
    total = sum(seconds for *_, seconds in kernels)
    calls = sum(number for _, number, _ in kernels)
    rows = [
        (name[:_LONGEST], f"{number:,}", f"{1e3 * seconds:.3f} ms", f"{seconds / total:.1%}")
        for name, number, seconds in kernels[:_SHOWN]
    ]
    print(table_text("A training step", ("kernel", "calls", "time", "share"), rows))
    name, _, longest = kernels[0]
    return True, (
        f"{calls:,} kernels in {1e3 * total:.1f} ms; {longest / total:.0%} in {name[:_LONGEST]}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0, or 2 for bad input."""
    return run_check("kernel_profile", check, arguments)


if __name__ == "__main__":
    sys.exit(main())
