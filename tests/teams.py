"""Trained teams, for the tests."""

from __future__ import annotations

from pathlib import Path

import torch

from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.runs.checkpoint import save_checkpoint


def save_team(path: Path, config: Config, seed: int = 5) -> Path:
    """Write the checkpoint of a team that has learned nothing, with wide logits."""
    torch.manual_seed(seed)
    team = make_algorithm(config, "cpu")
    with torch.no_grad():
        team.modules["actor"].head.weight.mul_(20)
    save_checkpoint(path, {**team.state_dict(), "config": config_to_dict(config)})
    return path
