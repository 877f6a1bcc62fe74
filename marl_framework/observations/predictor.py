"""Trained map predictors: what their checkpoints hold, and how to load one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_framework.config.errors import ConfigError, found_at
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.runs.checkpoint import load_checkpoint, misfit, tensors_checksum
from marl_framework.runs.names import checkpoint_file


def predictor_state(network: MapPredictor, width: int) -> dict[str, Any]:
    """Return what a checkpoint holds of a predictor."""
    return {"predictor": network.state_dict(), "width": width}


def load_predictor(name: str, key: str) -> MapPredictor:
    """Read a trained predictor from a run folder or a checkpoint file, on the CPU.

    Args:
        name: of the folder or file, or `pretrained:predictor`.
        key: of the params file that names it, or the option.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    with found_at(key):
        path = checkpoint_file(name)
        payload = load_checkpoint(path)
    return predictor_of(payload, f"{key}: {path}")


def predictor_weights(name: str, key: str) -> dict[str, str]:
    """Return a checksum of a predictor's weights, see `check_weights` and `load_predictor`."""
    return {f"{key}: {name}": predictor_checksum(name, key)}


def predictor_checksum(name: str, key: str) -> str:
    """Return the checksum alone."""
    return tensors_checksum(load_predictor(name, key).state_dict())


def predictor_of(payload: Mapping[str, Any], where: str) -> MapPredictor:
    """Return the predictor of a checkpoint's content, on the CPU.

    Args:
        payload: what `predictor_state` returned, and anything else.
        where: it comes from, for messages.

    Raises:
        ConfigError: there is none, or one of another version.
    """
    saved, width = payload.get("predictor"), payload.get("width")
    if not isinstance(saved, Mapping) or not isinstance(width, int):
        raise ConfigError(f"{where} is no checkpoint of a predictor")
    network = MapPredictor(width)
    difference = misfit(network.state_dict(), saved)
    if difference is not None:
        raise ConfigError(f"{where} is of another version: {difference}")
    network.load_state_dict(dict(saved))
    return network.eval()
