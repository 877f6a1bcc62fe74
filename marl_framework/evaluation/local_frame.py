"""What a deployment hands over in metres: belief maps and waypoints."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from marl_framework.runs.files import write_json

FRAME = (
    "local: metres from the lower left corner of the mission's window, x to the right, y up, "
    "altitude above ground; not longitude and latitude"
)
"""Coordinate frame of the waypoints, as the files describe it."""


def write_belief(belief: Tensor, folder: Path) -> None:
    """Write P(region of interest) of a window as `belief.npy`, [x, y] float32.

    Args:
        belief: [R, C], on the CPU.
        folder: existing folder.
    """
    np.save(folder / "belief.npy", belief.float().numpy())


def write_image(belief: Tensor, folder: Path) -> None:
    """Write P(region of interest) of a window as `belief.tiff`, float32, x right and y up.

    Args:
        belief: [R, C], on the CPU.
        folder: existing folder.
    """
    image = np.ascontiguousarray(np.rot90(belief.float().numpy()))
    done, data = cv2.imencode(".tiff", image)
    if not done:
        raise OSError(0, f"{folder / 'belief.tiff'}: cannot be encoded")
    (folder / "belief.tiff").write_bytes(data.tobytes())


def write_table(paths: Sequence[Tensor], folder: Path) -> None:
    """Write the position of each reading to `waypoints.csv`.

    Args:
        paths: positions of each UAV in `FRAME` [m], [readings, 3] each, on the CPU.
        folder: existing folder.
    """
    with (folder / "waypoints.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("uav", "reading", "x_m", "y_m", "altitude_m"))
        for n, path in enumerate(paths, start=1):
            points = enumerate(path.tolist(), start=1)
            writer.writerows((n, reading, *point) for reading, point in points)


def write_waypoints(paths: Sequence[Tensor], origin: list[float], folder: Path) -> None:
    """Write the position of each reading to `waypoints.json`.

    Args:
        paths: positions of each UAV in `FRAME` [m], [readings, 3] each, on the CPU.
        origin: lower left corner (x, y) of the window on the map [m].
        folder: existing folder.
    """
    found = {
        "coordinate_frame": FRAME,
        "window_origin_m": origin,
        "uavs": [{"uav": n, "positions_m": path.tolist()} for n, path in enumerate(paths, start=1)],
    }
    write_json(folder / "waypoints.json", found)
