"""Terrains of a user's own, named in `sensor.simulation.kinds` by dotted path."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config

_KEY = "sensor.simulation.kinds"


class OwnTerrain(Protocol):
    """Draws and builds ground truths; made as `MyTerrain(config, device, split)`.

    All randomness is in `draw`, so that the same draws give the same maps again.
    """

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Return the random numbers behind `num` ground truths, [num, …], on the device."""
        ...

    def build(self, draws: Tensor) -> Tensor:
        """Return their ground truths [num, R, C] bool, True = region of interest."""
        ...


class _Checked:
    """Says in one line what a user's terrain does wrong."""

    def __init__(self, path: str, terrain: OwnTerrain, shape: tuple[int, int]) -> None:
        self._path, self._terrain, self._shape = path, terrain, shape

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        draws = self._terrain.draw(num, generator)
        if not isinstance(draws, Tensor) or draws.shape[:1] != (num,):
            raise self._wrong("draw", f"[{num}, …]", draws)
        return draws

    def build(self, draws: Tensor) -> Tensor:
        truth = self._terrain.build(draws)
        shape = (len(draws), *self._shape)
        if not isinstance(truth, Tensor) or truth.shape != shape or truth.dtype != torch.bool:
            raise self._wrong("build", f"{list(shape)} bool", truth)
        return truth

    def _wrong(self, method: str, wanted: str, got: object) -> ConfigError:
        found = type(got).__name__
        if isinstance(got, Tensor):
            found = f"{list(got.shape)} {str(got.dtype).removeprefix('torch.')}"
        return ConfigError(f"{_KEY}: {self._path}.{method} must return {wanted}, got {found}")


def load_own(path: str, config: Config, device: torch.device, split: str) -> OwnTerrain:
    """Return the terrain that a dotted path names.

    Raises:
        ConfigError: there is none, or it has no `draw` and `build`.
    """
    terrain = load_part(path, _KEY, "config", "device", "split")(config, device, split)
    if not all(callable(getattr(terrain, name, None)) for name in ("draw", "build")):
        raise ConfigError(f"{_KEY}: {path}: a terrain has draw(num, generator) and build(draws)")
    return _Checked(path, terrain, config.map_shape)
