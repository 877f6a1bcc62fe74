"""Configurations and maps for the tests of terrains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from marl_framework.config.model import Config
from marl_framework.config.parts import TERRAINS
from marl_framework.mission.terrains.mixture import Terrain, TerrainDraws

SAMPLE = {"path": "matplotlib:jacksboro_fault_dem.npz", "resolution": 1.0}
KINDS = tuple(TERRAINS)
RECTANGULAR = KINDS[:5]


def configuration(*kinds: str, pixels: int = 9, x_dim: float = 40.0, **simulation: Any) -> Config:
    """Maps of 62 × 77 cells, of 77 × 77 where x_dim is 50."""
    return Config.model_validate(
        {
            "environment": {"x_dim": x_dim},
            "sensor": {
                "pixel": {"number_x": pixels, "number_y": pixels},
                "simulation": {"kinds": kinds, "raster": SAMPLE, **simulation},
            },
        }
    )


def drawn(terrain: Terrain, num: int, seed: int = 0) -> TerrainDraws:
    return terrain.draw(num, torch.Generator(terrain.device).manual_seed(seed))


class Discs:
    """A kind of a user's own: a disc around a random point."""

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        self.rows, self.cols = (
            torch.linspace(0, 1, n, device=device) for n in config.geometry.map_shape
        )

    def draw(self, num: int, generator: torch.Generator | None) -> torch.Tensor:
        return torch.rand(num, 2, generator=generator, device=self.rows.device)

    def build(self, draws: torch.Tensor) -> torch.Tensor:
        x, y = draws[:, 0, None, None], draws[:, 1, None, None]
        return (self.rows[:, None] - x) ** 2 + (self.cols - y) ** 2 < 0.1


def over_map(path: Path | str, extent: tuple[float, float] = (50, 50), **raster: Any) -> Config:
    """Maps of 8 cells per 10 m: 40 × 40 cells for 50 × 50 m."""
    return Config.model_validate(
        {
            "environment": {"x_dim": float(extent[0]), "y_dim": float(extent[1])},
            "experiment": {"constraints": {"spacing": 10.0, "max_altitude": 15.0}},
            "sensor": {
                "field_of_view": {"angle_x": 53.13010235415598, "angle_y": 53.13010235415598},
                "pixel": {"number_x": 4, "number_y": 4},
                "simulation": {
                    "kinds": ("raster",),
                    "raster": {"path": str(path), "resolution": 1.0, **raster},
                },
            },
        }
    )


def saved(folder: Path, values: np.ndarray) -> Path:
    np.save(folder / "map.npy", values)
    return folder / "map.npy"


def bumps(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """A smooth map with NaN nowhere."""
    noise = np.random.default_rng(seed).normal(size=(rows, cols)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 2.0)
