"""Trained teams and predictors, for the tests."""

from pathlib import Path
from typing import Any

import torch

from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.prediction import predictor_state
from marl_framework.runs.checkpoint import save_checkpoint


def save_team(path: Path, config: Config, /, seed: int = 5, **changes: Any) -> Path:
    """Write the checkpoint of a team that has learned nothing, with wide logits."""
    torch.manual_seed(seed)
    team = make_algorithm(config, "cpu")
    head = team.modules["actor"].head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.weight.mul_(20)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, {**team.state_dict(), "config": config_to_dict(config), **changes})
    return path


def save_predictor(path: Path, config: Config, /, seed: int = 5, **changes: Any) -> Path:
    """Write the checkpoint of a map predictor that has learned nothing."""
    torch.manual_seed(seed)
    state = predictor_state(MapPredictor(4), 4)
    save_checkpoint(path, {**state, "config": config_to_dict(config), **changes})
    return path
