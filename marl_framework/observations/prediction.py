"""Predictions of the map from beliefs, by a trained network, and its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError, found_at
from marl_framework.device import autocast, resolve_precision
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.lattice_view import Features, LatticeView
from marl_framework.runs.checkpoint import load_checkpoint, misfit, tensors_checksum
from marl_framework.runs.names import checkpoint_file


class MapPrediction:
    """Predicts the entropy in the region of interest from beliefs.

    Args:
        view: the missions' lattice, divided into `PARTS`.
        network: the trained predictor.
        precision: `compute.precision` of its forward passes.
    """

    def __init__(self, view: LatticeView, network: MapPredictor, precision: str = "auto") -> None:
        self._view, self._network, self._precision = view, network, precision

    @torch.no_grad()
    def of(self, beliefs: Tensor) -> Tensor:
        """Return the entropy expected around each lattice position, [..., X, Y] of [..., R, C]."""
        return self.predict(self._view.entropy_maps(beliefs))

    def highest(self) -> float:
        """Return the largest possible prediction: all cells of a position are undecided."""
        return float(self._view.sizes().max())

    def predict(self, seen: Features) -> Tensor:
        """Return the entropy expected in the region of interest [..., X, Y]."""
        lead, device = seen.coarse.shape[:-3], seen.coarse.device
        with autocast(device, resolve_precision(self._precision, device)):
            logits = self._network(*(maps.flatten(0, len(lead) - 1) for maps in seen))
        return logits.float().sigmoid().unflatten(0, lead) * seen.coarse[..., 1, :, :]


def predictor_state(network: MapPredictor, width: int) -> dict[str, Any]:
    """Return the content of a predictor's checkpoint."""
    return {"predictor": network.state_dict(), "width": width}


def load_predictor(name: str, key: str) -> MapPredictor:
    """Read the trained predictor that a key or option names, on the CPU.

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
    """Return the predictor of a checkpoint's content, on the CPU; `where` is its source.

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
