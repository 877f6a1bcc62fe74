"""Frames of a known map, rendered by casting a ray through each pixel, without kornia."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from marl_framework.flying.frame_camera import Lens
from marl_framework.flying.frames import Pose

HIGH, LOW = 200, 50
"""Pixel values of cells inside and outside the region of interest."""
_DOWN = np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1]])  # from forward, right, down to the camera


def world_to_camera(pose: Pose) -> Any:
    """Rotation from east, north, up to the camera: right, down in the image, optical axis."""
    body = Rotation.from_euler("ZYX", [pose.yaw, pose.pitch, pose.roll], degrees=True)
    ned = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1]])
    return _DOWN @ body.as_matrix().T @ ned


def render(
    cells: np.ndarray, cell: tuple[float, float], pose: Pose, lens: Lens, size: tuple[int, int]
) -> np.ndarray:
    """Image [height, width] of a map [R, C] that begins at (0, 0); outside it alternates."""
    width, height = size
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    distorted = np.stack((columns - lens.centre[0], rows - lens.centre[1]), -1) / lens.focal
    radius = np.linalg.norm(distorted, axis=-1)
    k1, k2 = lens.distortion
    low, high = np.zeros_like(radius), np.full_like(radius, min(np.sqrt(lens.limit), 20.0))
    for _ in range(60):  # bisection of r (1 + k1 r² + k2 r⁴) = radius
        middle = (low + high) / 2
        below = middle * (1 + k1 * middle**2 + k2 * middle**4) < radius
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    scale = np.where(radius > 0, low / np.maximum(radius, 1e-12), 1)[..., None]
    rays = np.concatenate((distorted * scale, np.ones((*radius.shape, 1))), -1)
    rays = rays @ world_to_camera(pose)  # the inverse of a rotation, from the right
    steps = pose.altitude / np.maximum(-rays[..., 2], 1e-9)
    x, y = pose.x + steps * rays[..., 0], pose.y + steps * rays[..., 1]
    row, column = np.floor(x / cell[0]), np.floor(y / cell[1])
    inside = (row >= 0) & (row < cells.shape[0]) & (column >= 0) & (column < cells.shape[1])
    r, c = (np.where(inside, v, 0).astype(int) for v in (row, column))
    found = np.where(inside, cells[r, c], (row + column) % 2 == 0)
    return np.where(found, HIGH, LOW).astype(np.uint8)


def save(folder: Path, name: str, image: np.ndarray, pose: Pose, time: float, **facts: Any) -> None:
    """Write an image and then its JSON file; `facts` replace x and y."""
    cv2.imwrite(str(folder / f"{name}.png"), image)
    where = facts or {"x": pose.x, "y": pose.y}
    angles = {"roll": pose.roll, "pitch": pose.pitch, "yaw": pose.yaw}
    content = {"time": time, "altitude": pose.altitude, **where, **angles}
    (folder / f"{name}.json").write_text(json.dumps(content))
