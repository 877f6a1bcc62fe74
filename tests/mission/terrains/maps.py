"""Raster maps on disk, and the missions over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from marl_framework.config.model import Config


def configuration(
    path: Path | str, extent: tuple[float, float] = (50, 50), **raster: Any
) -> Config:
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
