"""How a params file chooses an algorithm."""

from __future__ import annotations

import torch

from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.protocol import Algorithm, Symmetries
from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.parts import ALGORITHMS

_KEY = "experiment.algorithm"
_VERBS = ("act", "update", "state_dict", "load_state_dict")
_ATTRIBUTES = ("device", "precision", "modules", "training_steps")


def make_algorithm(
    config: Config,
    device: torch.device | str,
    symmetries: Symmetries | None = None,
    graphs: Graphs | None = None,
) -> Algorithm:
    """Return what `experiment.algorithm` names, with fresh networks.

    Raises:
        ConfigError: it cannot be loaded, or lacks a verb, an attribute or an actor.
    """
    name = config.experiment.algorithm
    part = load_part(
        ALGORITHMS.get(name, name), _KEY, "config", "sizes", "device", "symmetries", "graphs"
    )
    made: Algorithm = part(config, config.network_sizes, device, symmetries, graphs)
    lacking = [verb for verb in _VERBS if not callable(getattr(made, verb, None))]
    lacking += [name for name in _ATTRIBUTES if not hasattr(made, name)]
    if lacking or "actor" not in made.modules:
        what = ", ".join(lacking) or "an actor in modules"
        raise ConfigError(f"{_KEY}: {name} lacks {what}; see algorithms.protocol.Algorithm")
    return made
