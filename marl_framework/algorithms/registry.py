"""Construction and validation of the algorithm named in a params file."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from marl_framework.algorithms.batch import Symmetries
from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.rollout import Algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config, NetworkSizes
from marl_framework.config.parts import ALGORITHMS, custom_code, make_part
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
    """Build the algorithm named by `experiment.algorithm`, with newly initialised networks.

    Raises:
        ConfigError: the algorithm cannot be loaded, or lacks a method, an attribute or an actor.
    """
    name = config.experiment.algorithm
    algorithm: Algorithm = make_part(
        ALGORITHMS,
        name,
        _KEY,
        config=config,
        sizes=config.network_sizes,
        device=device,
        symmetries=symmetries,
        graphs=graphs,
    )
    missing = [method for method in _METHODS if not callable(getattr(algorithm, method, None))]
    missing += [attribute for attribute in _ATTRIBUTES if not hasattr(algorithm, attribute)]
    if missing or "actor" not in algorithm.modules:
        what = ", ".join(missing) or "modules['actor']"
        raise ConfigError(f"{_KEY}: {name} lacks {what}; see algorithms.rollout.Algorithm")
    if name not in ALGORITHMS:
        _check_custom(algorithm, config.network_sizes, f"{_KEY}: {name}")
    return algorithm


@torch.no_grad()
def _check_custom(algorithm: Algorithm, sizes: NetworkSizes, name: str) -> None:
    """Check the state and the logits of a custom algorithm before training."""
    with custom_code(f"{name}.state_dict fails"):
        state = algorithm.state_dict()
    if not isinstance(state, Mapping) or "actor" not in state:
        raise ConfigError(f"{name}.state_dict must return a dict with key `actor`")
    try:
        check_plain(state, "state_dict()")
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error
    seen = torch.zeros(2, 3, sizes.actor_channels, *sizes.shape, device=algorithm.device)
    if seen.is_meta:  # only estimates memory
        return
    with torch.random.fork_rng(devices=[]), custom_code(f"{name}.act fails on {list(seen.shape)}"):
        logits = algorithm.act(seen)
    check_outputs(logits, [2, 3, sizes.num_actions], f"{name}.act", seen)
