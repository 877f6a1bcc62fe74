"""Training of a team."""

from __future__ import annotations

from functools import partial

import torch

from marl_framework.config.model import Config
from marl_framework.runs.log import RunLog
from marl_framework.training.distributed import rank_device
from marl_framework.training.lifecycle import Job, train
from marl_framework.training.memory import (
    check_memory,
    device_memory,
    memory_advice,
    memory_estimate,
)
from marl_framework.training.options import Start
from marl_framework.training.ranks import Ranks
from marl_framework.training.trainer import Trainer


def train_team(config: Config, start: Start, log: RunLog, ranks: Ranks | None = None) -> int:
    """Train a team; return the exit code, see `lifecycle.train`."""
    ranks = ranks or Ranks()
    device = rank_device(config, ranks)
    check_memory(config, device, ranks.count)

    def advice() -> str:
        free, _ = device_memory(device)
        reserved = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        count = ranks.count if reserved else 1
        parts = memory_estimate(config, count, device)
        change = memory_advice(config, parts, free + reserved, count)
        again = "a run with checkpoints continues with --resume --allow-changed KEY"
        return f"try --set {change}; {again}"

    make = partial(Trainer, config, device, ranks)
    return train(Job(config, device, make, Trainer.mark, advice, ranks), start, log)
