"""Map predictions from beliefs by a trained network, and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.model import Config
from marl_framework.device import autocast, resolve_precision
from marl_framework.mission.lattice import Lattice
from marl_framework.networks.convolutional import place
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.lattice_view import Features, LatticeView
from marl_framework.runs.checkpoint import load_checkpoint, misfit, tensors_checksum
from marl_framework.runs.names import checkpoint_file

CPU_POSITIONS = 2**15
"""Number of lattice positions that a CPU predicts in one forward pass."""


class MapPrediction:
    """Predictor of the entropy in the region of interest from beliefs.

    Args:
        view: lattice of the missions, subdivided into `PARTS`.
        network: trained predictor.
        precision: precision of its forward passes, as in `compute.precision`.
    """

    def __init__(self, view: LatticeView, network: MapPredictor, precision: str = "auto") -> None:
        self._view, self._network, self._precision = view, network, precision

    @torch.no_grad()
    def of(self, beliefs: Tensor) -> Tensor:
        """Predict the entropy around each lattice position [..., X, Y] from beliefs [..., R, C]."""
        return self.predict(self._view.entropy_maps(beliefs))

    def highest(self) -> float:
        """Return the largest possible prediction: all cells of a position are undecided."""
        return float(self._view.count_cells().max())

    def predict(self, features: Features) -> Tensor:
        """Predict the entropy in the region of interest, [..., X, Y]."""
        return self.share(features) * features.coarse[..., 1, :, :]

    def share(self, features: Features) -> Tensor:
        """Predict the share of the entropy that lies in the region of interest, [..., X, Y]."""
        lead, device = features.coarse.shape[:-3], features.coarse.device
        # With channels last the convolutions are a quarter faster, on CPU and GPU.
        maps = [each.flatten(0, len(lead) - 1) for each in features]
        maps = [each.to(memory_format=torch.channels_last) for each in maps]
        with autocast(device, resolve_precision(self._precision, device)):
            if device.type == "cpu" and not torch.compiler.is_exporting():
                # Chunks are a fifth faster, and take less memory.
                size = max(16, CPU_POSITIONS // math.prod(features.coarse.shape[-2:]))
                chunks = zip(*(each.split(size) for each in maps), strict=True)
                logits = torch.cat([self._network(*chunk) for chunk in chunks])
            else:
                logits = self._network(*maps)
        return logits.float().sigmoid().unflatten(0, lead)


def predictor_state(network: MapPredictor, width: int) -> dict[str, Any]:
    """Return the contents of a predictor checkpoint."""
    return {"predictor": network.state_dict(), "width": width}


def load_predictor(name: str, key: str) -> MapPredictor:
    """Load a trained predictor on the CPU; `key` is the key or option to cite in errors.

    Raises:
        ConfigError: the checkpoint is missing or cannot be read.
    """
    with found_at(key):
        path = checkpoint_file(name)
        payload = load_checkpoint(path)
    return predictor_of(payload, f"{key}: {path}")


def placed_predictor(name: str, key: str, config: Config, lattice: Lattice) -> MapPredictor:
    """Load a trained predictor for missions on a lattice; see `load_predictor`."""
    return place(load_predictor(name, key), config.compute, lattice.offsets.device)


def predictor_weights(name: str, key: str) -> dict[str, str]:
    """Return `predictor_checksum`, keyed by key and name, for `check_weights`."""
    return {f"{key}: {name}": predictor_checksum(name, key)}


def predictor_checksum(name: str, key: str) -> str:
    """Return the checksum of a predictor's weights; arguments as in `load_predictor`."""
    return tensors_checksum(load_predictor(name, key).state_dict())


def predictor_of(payload: Mapping[str, Any], where: str) -> MapPredictor:
    """Build the predictor from a checkpoint's contents, on the CPU; `where` is its source.

    Raises:
        ConfigError: the checkpoint holds no predictor, or a predictor of another version.
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
