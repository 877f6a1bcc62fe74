"""Checkpoints of trained map predictors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_framework.config.errors import ConfigError, found_at
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.runs.checkpoint import load_checkpoint, misfit, tensors_checksum
from marl_framework.runs.names import checkpoint_file


def predictor_state(network: MapPredictor, width: int) -> dict[str, Any]:
    """Return the content of a predictor's checkpoint."""
    return {"predictor": network.state_dict(), "width": width}


def load_predictor(name: str, key: str) -> MapPredictor:
    """Read a trained predictor from a run folder or a checkpoint file, on the CPU.

    Args:
        name: folder or file, or `pretrained:predictor`.
        key: key of the params file, or option, that names it.

    Raises:
        ConfigError: it is missing or cannot be read.
    """
    with found_at(key):
        path = checkpoint_file(name)
        payload = load_checkpoint(path)
    return predictor_of(payload, f"{key}: {path}")


def predictor_weights(name: str, key: str) -> dict[str, str]:
    """Return `predictor_checksum` by key and name, for `check_weights`."""
    return {f"{key}: {name}": predictor_checksum(name, key)}


def predictor_checksum(name: str, key: str) -> str:
    """Return the checksum of a predictor's weights; arguments as of `load_predictor`."""
    return tensors_checksum(load_predictor(name, key).state_dict())


def predictor_of(payload: Mapping[str, Any], where: str) -> MapPredictor:
    """Return the predictor of a checkpoint's content, on the CPU.

    Args:
        payload: content of `predictor_state`, and anything else.
        where: its source, for messages.

    Raises:
        ConfigError: it holds no predictor, or one of another version.
    """
    saved, width = payload.get("predictor"), payload.get("width")
    if not isinstance(saved, Mapping) or not isinstance(width, int):
        raise ConfigError(f"{where} is not a checkpoint of a predictor")
    network = MapPredictor(width)
    difference = misfit(network.state_dict(), saved)
    if difference is not None:
        raise ConfigError(f"{where} is of another version: {difference}")
    network.load_state_dict(dict(saved))
    return network.eval()
