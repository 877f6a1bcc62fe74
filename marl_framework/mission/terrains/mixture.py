"""Ground truths of E missions; each mission draws one of the configured terrain kinds."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.parts import TERRAINS, make_part
from marl_framework.mission.seeding import check_split
from marl_framework.mission.terrains.raster import RasterTerrain

_KEY = "sensor.simulation.kinds"
_MEMORY = 2**29  # [bytes] for the maps that are built at once
_BYTES_PER_CELL = 30  # for kinds without `bytes_per_mission`


class TerrainKind(Protocol):
    """Interface of a terrain kind; created as `MyTerrain(config, device, split)`.

    All randomness is in `draw`: the same draws give the same maps. The optional attribute
    `bytes_per_mission` is the memory that `build` needs per mission; large batches are split to
    fit into memory.
    """

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw the random numbers for `num` ground truths, [num, …], on the device."""
        ...

    def build(self, draws: Tensor) -> Tensor:
        """Return the ground truths of `draws`, [num, R, C] bool, True = region of interest."""
        ...


@dataclass
class TerrainDraws:
    """Random draws for the ground truths of E missions."""

    kind: Tensor
    """Index into `Terrain.kinds`, [E] int64."""
    numbers: tuple[Tensor, ...]
    """Draws of each kind, [E, …]; see `Terrain.numbers`."""

    def __getitem__(self, missions: slice) -> TerrainDraws:
        """Select missions by a slice."""
        return TerrainDraws(self.kind[missions], tuple(part[missions] for part in self.numbers))


class Terrain:
    """Draws and builds the ground truths of one split.

    Each mission draws one of the kinds in `sensor.simulation` with equal probability. Training,
    validation and test use separate parts of a raster; deployment uses the whole raster. For
    other kinds, splits differ only in the generator's seed.

    Attributes:
        kinds: names of the terrain kinds.
        shape: number of map cells (R, C).
        most_at_once: largest number of missions that are built at once.

    Raises:
        ConfigError: a kind cannot be loaded; the raster cannot be read or is too small.
    """

    def __init__(self, config: Config, device: torch.device | str, split: str) -> None:
        check_split(split)
        self.kinds = config.sensor.simulation.drawn_kinds
        self.device = torch.device(device)
        self.shape = config.geometry.map_shape
        self._parts = {name: _load(name, config, self.device, split) for name in self.kinds}
        # Built-in kinds draw first, in the order of `config.parts`; kinds with the same `draw`
        # share its numbers. This order must not change, or seeds give other missions.
        known = list(TERRAINS)
        order = sorted(self.kinds, key=lambda name: known.index(name) if name in known else 99)
        methods = {n: type(self._parts[n]).draw if n in TERRAINS else n for n in order}
        self._drawing: dict[Hashable, str] = {}
        for name in order:
            self._drawing.setdefault(methods[name], name)
        self._slots = {name: list(self._drawing).index(methods[name]) for name in order}
        usual = _BYTES_PER_CELL * self.shape[0] * self.shape[1]
        needed = (getattr(part, "bytes_per_mission", usual) for part in self._parts.values())
        self.most_at_once = max(1, _MEMORY // max(needed))

    def draw(self, num: int, generator: torch.Generator | None) -> TerrainDraws:
        """Draw the random numbers for the ground truths of `num` missions."""
        kind = torch.randint(len(self.kinds), (num,), generator=generator, device=self.device)
        numbers = []
        for name in self._drawing.values():
            numbers.append(self._parts[name].draw(num, generator))
            if not isinstance(numbers[-1], Tensor) or numbers[-1].shape[:1] != (num,):
                raise _result_error(f"{name}.draw", f"[{num}, …]", numbers[-1])
        return TerrainDraws(kind, tuple(numbers))

    def numbers(self, draws: TerrainDraws, kind: str) -> Tensor:
        """Return the draws of the kind with this name."""
        return draws.numbers[self._slots[kind]]

    @property
    def raster(self) -> RasterTerrain | None:
        """Terrain of the measured map; None if no kind is `raster`."""
        raster = self._parts.get("raster")
        return raster if isinstance(raster, RasterTerrain) else None

    def window_origins(self, draws: TerrainDraws) -> Tensor | None:
        """Return the lower left corners of raster windows in the split's part of the map [m].

        Corners are [E, 2] float64, NaN for missions of other kinds; None without a raster.
        """
        raster = self.raster
        if raster is None:
            return None
        chosen = draws.kind == self.kinds.index("raster")
        origins = raster.origins(self.numbers(draws, "raster"))
        return torch.where(chosen[:, None], origins, torch.nan)

    def build(self, draws: TerrainDraws, out: Tensor | None = None) -> Tensor:
        """Return the ground truths [E, R, C] bool, True = region of interest.

        If `out` is given, the maps are written into it. The same draws give the same maps.
        """
        num = len(draws.kind)
        if out is None:
            if num <= self.most_at_once:
                return self._build_part(draws)
            out = self._empty(draws)
        for start in range(0, num, self.most_at_once):
            part = slice(start, start + self.most_at_once)
            out[part] = self._build_part(draws[part])
        return out

    def _build_part(self, draws: TerrainDraws) -> Tensor:
        """Build ground truths that fit into memory at once."""
        if len(self.kinds) == 1:
            return self._build_kind(self.kinds[0], draws.numbers[0])
        truth = self._empty(draws)
        for index, name in enumerate(self.kinds):
            chosen, numbers = draws.kind == index, self.numbers(draws, name)
            if not may_read(draws.kind):
                built = self._build_kind(name, numbers)
                truth = torch.where(chosen[:, None, None], built, truth)
            elif chosen.any():
                truth[chosen] = self._build_kind(name, numbers[chosen])
        return truth

    def _empty(self, draws: TerrainDraws) -> Tensor:
        return draws.kind.new_empty(len(draws.kind), *self.shape, dtype=torch.bool)

    def _build_kind(self, name: str, numbers: Tensor) -> Tensor:
        truth, expected = self._parts[name].build(numbers), (len(numbers), *self.shape)
        if not isinstance(truth, Tensor) or truth.shape != expected or truth.dtype != torch.bool:
            raise _result_error(f"{name}.build", f"{list(expected)} bool", truth)
        return truth


def may_read(kind: Tensor) -> bool:
    """Return whether the host can read the kinds without waiting for a GPU."""
    return kind.device.type == "cpu" and not torch.compiler.is_compiling()


def _load(name: str, config: Config, device: torch.device, split: str) -> TerrainKind:
    """Create a terrain kind from its name in `config.parts` or its dotted path."""
    kind: TerrainKind = make_part(TERRAINS, name, _KEY, config=config, device=device, split=split)
    if not all(callable(getattr(kind, method, None)) for method in ("draw", "build")):
        raise ConfigError(f"{_KEY}: {name} must have draw(num, generator) and build(draws)")
    return kind


def _result_error(method: str, expected: str, result: object) -> ConfigError:
    got = type(result).__name__
    if isinstance(result, Tensor):
        got = f"{list(result.shape)} {str(result.dtype).removeprefix('torch.')}"
    return ConfigError(f"{_KEY}: {method} must return {expected}, got {got}")
