"""Makes and checks the algorithm that a params file names."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from marl_framework.algorithms.batch import Symmetries
from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.rollout import Algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config, NetworkSizes
from marl_framework.config.parts import ALGORITHMS, load_part
from marl_framework.networks.registry import check_outputs
from marl_framework.runs.checkpoint import check_plain

_KEY = "experiment.algorithm"
_METHODS = ("act", "update", "state_dict", "load_state_dict")
_ATTRIBUTES = ("device", "precision", "modules", "training_steps")


def make_algorithm(
    config: Config,
    device: torch.device | str,
    symmetries: Symmetries | None = None,
    graphs: Graphs | None = None,
) -> Algorithm:
    """Return the algorithm that `experiment.algorithm` names, with fresh networks.

    Raises:
        ConfigError: it cannot be loaded, or lacks a method, an attribute or an actor.
    """
    name = config.experiment.algorithm
    parameters = "config", "sizes", "device", "symmetries", "graphs"
    part = load_part(ALGORITHMS.get(name, name), _KEY, *parameters)
    made: Algorithm = part(config, config.network_sizes, device, symmetries, graphs)
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    missing += [attribute for attribute in _ATTRIBUTES if not hasattr(made, attribute)]
    if missing or "actor" not in made.modules:
        what = ", ".join(missing) or "an actor in modules"
        raise ConfigError(f"{_KEY}: {name} lacks {what}; see algorithms.rollout.Algorithm")
    if name not in ALGORITHMS:
        _check_custom(made, config.network_sizes, f"{_KEY}: {name}")
    return made


@torch.no_grad()
def _check_custom(algorithm: Algorithm, sizes: NetworkSizes, name: str) -> None:
    """Check state and actions of a custom algorithm before training."""
    state = algorithm.state_dict()
    if not isinstance(state, Mapping) or "actor" not in state:
        raise ConfigError(f"{name}.state_dict must return a dict with the key `actor`")
    try:
        check_plain(state, "state_dict()")
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error
    seen = torch.zeros(2, 3, sizes.actor_channels, *sizes.shape, device=algorithm.device)
    if seen.is_meta:  # made to estimate memory
        return
    with torch.random.fork_rng(devices=[]):
        check_outputs(algorithm.act(seen), [2, 3, sizes.num_actions], f"{name}.act", seen)
