"""Lattice and map of a mission, derived from area, altitudes and camera."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from marl_framework.config.mission import ConstraintsConfig, EnvironmentConfig, SensorConfig


@dataclass(frozen=True)
class Geometry:
    """Lattice and map of a mission; x before y."""

    lattice_shape: tuple[int, int, int]
    """Number of lattice positions (X, Y, Z)."""
    altitudes: tuple[float, ...]
    """Altitudes of the lattice [m], lowest first."""
    cell_size: tuple[float, float]
    """Cell size of the map (res_x, res_y) [m]."""
    map_shape: tuple[int, int]
    """Number of map cells (R, C)."""
    quarter_turns: bool
    """Whether area and footprints are squares, so that a quarter turn maps missions to missions."""

    @classmethod
    def of(cls, area: EnvironmentConfig, limits: ConstraintsConfig, sensor: SensorConfig) -> Self:
        """Derive lattice and map from the sections of a configuration."""
        low, spacing = limits.min_altitude, limits.spacing
        view, pixel = sensor.field_of_view, sensor.pixel
        angles, pixels = (view.angle_x, view.angle_y), (pixel.number_x, pixel.number_y)
        sides = (area.x_dim, area.y_dim)
        cell_x, cell_y = (
            2 * low * math.tan(math.radians(angle) / 2) / number
            for angle, number in zip(angles, pixels, strict=True)
        )
        x, y = (math.floor(side / spacing + 1e-9) + 1 for side in sides)
        levels = round((limits.max_altitude - low) / spacing) + 1
        return cls(
            lattice_shape=(x, y, levels),
            altitudes=tuple(low + k * spacing for k in range(levels)),
            cell_size=(cell_x, cell_y),
            map_shape=(
                math.floor(area.x_dim / cell_x + 1e-9),
                math.floor(area.y_dim / cell_y + 1e-9),
            ),
            quarter_turns=all(a == b for a, b in (angles, pixels, sides)),
        )
