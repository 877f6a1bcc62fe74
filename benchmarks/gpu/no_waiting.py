"""Makes training steps in which the host must not wait for the GPU.

    python -m benchmarks.gpu.no_waiting [--device cuda:1]

PyTorch raises an error at the first operation that waits. The first steps may wait: kernels are
compiled and chosen in them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from benchmarks.gpu.command_line import run_check
from marl_framework.config.model import Config
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

_FREE, _WATCHED = 2, 2  # training steps


def step_without_waiting(config: Config, device: torch.device) -> float:
    """Train a few steps, the last of them watched; return the last critic loss.

    Raises:
        RuntimeError: something waited for the GPU.
    """
    trainer = Trainer(config, device)
    for _ in range(_FREE):
        trainer.training_step(StageTimer(device))
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(_WATCHED):
            found, _ = trainer.training_step(StageTimer(device))
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    return float(found["critic_loss"])


def check(config: Config, device: torch.device) -> tuple[bool, str]:
    """Say that no step waited, and what the last one lost."""
    loss = step_without_waiting(config, device)
    seen = "no wait" if device.type == "cuda" else "a CPU has nothing to wait for"
    return True, f"{_WATCHED} training steps, {seen}; critic loss {loss:.3g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return 0, or 2 for bad input."""
    return run_check("no_waiting", check, arguments)


if __name__ == "__main__":
    sys.exit(main())
