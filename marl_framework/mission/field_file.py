"""Fields from files, on the host: cells that count, positions and moves of UAVs."""

from __future__ import annotations

import numpy as np
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.field import read_field
from marl_framework.config.geography import Array
from marl_framework.config.model import Config
from marl_framework.config.named_maps import FIELD_KEY
from marl_framework.mission.lattice import FieldTables, Lattice, action_offsets
from marl_framework.mission.no_fly_zones import check_starts

_TOLERANCE = 1e-3  # by which positions may lie outside [m], as degrees are rounded


def read_tables(name: str, config: Config) -> FieldTables:
    """Read the field of a file.

    Raises ConfigError if the file cannot be read, or UAVs cannot start in the field or fly to all
    of its positions.
    """
    import shapely

    lattice = Lattice(config, "cpu")
    shape = read_field(name).shape
    grown = shapely.buffer(shape, _TOLERANCE, join_style="mitre")
    for polygon in (shape, grown):
        shapely.prepare(polygon)
    x, y, levels = lattice.shape
    spacing = lattice.spacing
    points = np.stack(np.meshgrid(np.arange(x), np.arange(y), indexing="ij"), -1) * spacing
    inside = np.asarray(shapely.intersects_xy(grown, *np.moveaxis(points, -1, 0)))
    steps = action_offsets(config.experiment.constraints.num_actions)
    planar: dict[tuple[int, int], Array] = {}
    leaves = np.zeros((x, y), dtype=bool)
    for step in {(dx, dy) for dx, dy, _ in steps if dx or dy}:
        ways = shapely.linestrings(np.stack((points, points + spacing * np.array(step)), -2))
        planar[step] = inside & shapely.covers(grown, ways)
        leaves |= planar[step] & _shifted(inside, step)
    _check_parts(leaves, planar, name, spacing)
    moves = np.stack([planar[dx, dy] if dx or dy else leaves for dx, dy, _ in steps], -1)
    moves = np.repeat((moves & leaves[..., None])[:, :, None], levels, axis=2)
    in_field = lattice.table() & torch.from_numpy(moves)
    check_starts(in_field, config, lattice, FIELD_KEY)
    axes = zip(config.geometry.map_shape, config.geometry.cell_size, strict=True)
    rows, cols = ((np.arange(number) + 0.5) * size for number, size in axes)
    cells = shapely.intersects_xy(shape, rows[:, None], cols)
    if not cells.any():
        raise ConfigError(
            f"{FIELD_KEY}: {name} holds no middle of a map cell; raise sensor.pixel.number_x and "
            "number_y, or use a larger field"
        )
    return FieldTables(torch.from_numpy(cells), torch.from_numpy(leaves), in_field)


def _shifted(inside: Array, step: tuple[int, int]) -> Array:
    """Return whether the position one step away is inside, [X, Y]; False off the lattice."""
    padded = np.pad(inside, 1)
    x, y = inside.shape
    return padded[1 + step[0] : 1 + step[0] + x, 1 + step[1] : 1 + step[1] + y]


def _check_parts(
    positions: Array, moves: dict[tuple[int, int], Array], name: str, spacing: float
) -> None:
    """Raise a ConfigError if there are no positions, or if no UAV can change between two parts."""
    advice = "lower experiment.constraints.spacing, or use a larger field"
    if not positions.any():
        raise ConfigError(
            f"{FIELD_KEY}: {name} is too small, no two neighbouring positions at spacing "
            f"{spacing:g} m lie in it; {advice}"
        )
    parts = np.where(positions, np.arange(1, positions.size + 1).reshape(positions.shape), 0)
    while True:  # every position takes the highest number that it can fly to
        before = parts
        for step, allowed in moves.items():
            parts = np.maximum(parts, np.where(allowed, _shifted(parts, step), 0))
        if np.array_equal(before, parts):
            break
    sizes = np.unique(parts[positions], return_counts=True)[1]
    if len(sizes) > 1:
        listed = ", ".join(map(str, sorted(sizes.tolist(), reverse=True)[:4]))
        raise ConfigError(
            f"{FIELD_KEY}: {name}: UAVs cannot fly between its {len(sizes)} parts, of {listed} "
            "positions; lower experiment.constraints.spacing, or use one file for each part"
        )
