"""Protocol of a kind of terrain, and the checks of its results."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.parts import TERRAINS

_KEY = "sensor.simulation.kinds"


class TerrainKind(Protocol):
    """Draws and builds ground truths; made as `MyTerrain(config, device, split)`.

    All randomness is in `draw`: the same draws give the same maps again. The optional attribute
    `bytes_per_mission` is the memory that `build` needs for one of them; many missions are built
    in parts that fit.
    """

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Return the random numbers behind `num` ground truths, [num, …], on the device."""
        ...

    def build(self, draws: Tensor) -> Tensor:
        """Return their ground truths [num, R, C] bool, True = region of interest."""
        ...


def load_kind(name: str, config: Config, device: torch.device, split: str) -> TerrainKind:
    """Make the kind of a name in `config.parts` or of a dotted path.

    Raises:
        ConfigError: there is none, or it lacks `draw` or `build`.
    """
    make = load_part(TERRAINS.get(name, name), _KEY, "config", "device", "split")
    kind: TerrainKind = make(config, device, split)
    if not all(callable(getattr(kind, method, None)) for method in ("draw", "build")):
        raise ConfigError(f"{_KEY}: {name} must have draw(num, generator) and build(draws)")
    return kind


def checked_draw(
    name: str, kind: TerrainKind, num: int, generator: torch.Generator | None
) -> Tensor:
    """Return `kind.draw(num, generator)`.

    Raises:
        ConfigError: it is not a tensor of `num` missions.
    """
    draws = kind.draw(num, generator)
    if not isinstance(draws, Tensor) or draws.shape[:1] != (num,):
        raise _wrong(f"{name}.draw", f"[{num}, …]", draws)
    return draws


def checked_build(name: str, kind: TerrainKind, draws: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return `kind.build(draws)`.

    Raises:
        ConfigError: it is not a tensor [num, R, C] bool, (R, C) = `shape`.
    """
    truth = kind.build(draws)
    wanted = (len(draws), *shape)
    if not isinstance(truth, Tensor) or truth.shape != wanted or truth.dtype != torch.bool:
        raise _wrong(f"{name}.build", f"{list(wanted)} bool", truth)
    return truth


def _wrong(method: str, wanted: str, got: object) -> ConfigError:
    found = type(got).__name__
    if isinstance(got, Tensor):
        found = f"{list(got.shape)} {str(got.dtype).removeprefix('torch.')}"
    return ConfigError(f"{_KEY}: {method} must return {wanted}, got {found}")
