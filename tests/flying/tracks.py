"""Tracks of UAVs: time and position, [T, 4]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
GROUND = 0.5
"""Altitude below which a UAV has landed [m]."""


def distance(one: Array, other: Array) -> float:
    """Return the least distance of two UAVs, at least one of which is in the air [m]."""
    times = np.arange(max(one[0, 0], other[0, 0]), min(one[-1, 0], other[-1, 0]), 0.05)
    a, b = at(one, times), at(other, times)
    return float(np.linalg.norm(a - b, axis=1)[np.maximum(a[:, 2], b[:, 2]) > GROUND].min())


def at(track: Array, times: Array) -> Array:
    """Return the true positions at some times [m], [T, 3]."""
    return np.stack([np.interp(times, track[:, 0], along) for along in track.T[1:]], axis=1)
