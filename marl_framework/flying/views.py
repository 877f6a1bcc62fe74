"""What viewers draw of a flight: messages in Foxglove's schemas, as JSON.

Names and fields: https://docs.foxglove.dev/docs/sdk/schemas. The frame `lattice` has x to the east,
y to the north and z up [m].
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import torch

from marl_framework.flying.knowledge import Knowledge
from marl_framework.kernels.cells import area_pool, lattice_weights

_MOST_CELLS = 128  # along a side of a drawn belief
_UINT8 = 1  # foxglove.NumericType
_UPRIGHT = {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}


def _object(numbers: str, /, **fields: Any) -> dict[str, Any]:
    of_numbers = {name: {"type": "number"} for name in numbers.split()}
    return {"type": "object", "properties": of_numbers | fields}


_STAMP = {"timestamp": _object("sec nsec"), "frame_id": {"type": "string"}}
_POSE = _object("", position=_object("x y z"), orientation=_object("x y z w"))
_PACKED = _object("offset type", name={"type": "string"})
_GRID = {
    "pose": _POSE,
    "cell_size": _object("x y"),
    "fields": {"type": "array", "items": _PACKED},
    "data": {"type": "string", "contentEncoding": "base64"},
}
SCHEMAS = {
    "position": ("foxglove.PoseInFrame", _object("", **_STAMP, pose=_POSE)),
    "way": (
        "foxglove.PosesInFrame",
        _object("", **_STAMP, poses={"type": "array", "items": _POSE}),
    ),
    "belief": (
        "foxglove.Grid",
        _object("column_count row_stride cell_stride", **_STAMP, **_GRID),
    ),
}
"""Name and JSON schema of each drawn message, by topic."""


def draw(entry: Mapping[str, Any], knowledge: Knowledge, time: int) -> dict[str, dict[str, Any]]:
    """Return the messages after a log entry of a UAV, by topic; `time` in ns."""
    uav, state, env = knowledge.uav, knowledge.state, knowledge.environment
    seconds, rest = divmod(time, 10**9)
    stamp = {"timestamp": {"sec": seconds, "nsec": rest}, "frame_id": "lattice"}
    here = _pose(env.lattice.metres(state.positions[0, uav]).tolist())
    if entry["event"] == "decided":
        there = _pose(env.lattice.metres(torch.tensor(entry["next"])).tolist())
        return {"way": {**stamp, "poses": [here, there]}}
    if entry["event"] != "fused":
        return {}
    rows, cols = env.camera.shape
    factor = math.ceil(max(rows, cols) / _MOST_CELLS)
    shape = math.ceil(rows / factor), math.ceil(cols / factor)
    weights = lattice_weights((rows, cols), shape, "cpu")
    averages = area_pool(state.beliefs[0, uav], *weights).clamp(0, 1)
    data = (averages * 255).round().byte().mT.contiguous().numpy().tobytes()
    sides = (rows / shape[0], cols / shape[1])
    cell = [side * size for side, size in zip(sides, env.config.geometry.cell_size, strict=True)]
    belief = {
        "pose": _pose([0.0, 0.0, 0.0]),
        "column_count": shape[0],  # x runs along a row of the grid
        "cell_size": {"x": cell[0], "y": cell[1]},
        "row_stride": shape[0],
        "cell_stride": 1,
        "fields": [{"name": "belief", "offset": 0, "type": _UINT8}],
        "data": base64.b64encode(data).decode(),
    }
    return {"position": {**stamp, "pose": here}, "belief": {**stamp, **belief}}


def _pose(metres: list[float]) -> dict[str, Any]:
    return {"position": dict(zip("xyz", metres, strict=True)), "orientation": _UPRIGHT}
