"""Messages of a record that viewers draw: Foxglove's schemas, as JSON.

Fields and names follow https://docs.foxglove.dev/docs/sdk/schemas. The frame is the lattice: x to
the east, y to the north, z up [m].
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from marl_framework.kernels.cells import area_pool, lattice_weights

_MOST_CELLS = 128  # along a side of a drawn belief
_UINT8 = 1  # foxglove.NumericType

_NUMBER, _INTEGER, _TEXT = ({"type": name} for name in ("number", "integer", "string"))


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _numbers(names: str) -> dict[str, Any]:
    return _object(**dict.fromkeys(names, _NUMBER))


_STAMP = {"timestamp": _object(sec=_INTEGER, nsec=_INTEGER), "frame_id": _TEXT}
_POSE = _object(position=_numbers("xyz"), orientation=_numbers("xyzw"))
_PACKED = _object(name=_TEXT, offset=_INTEGER, type=_INTEGER)
_DATA = {"type": "string", "contentEncoding": "base64"}
SCHEMAS = {
    "log": ("flight.Entry", _object(time=_NUMBER, uav=_INTEGER, move=_INTEGER, event=_TEXT)),
    "calls": ("flight.Call", _object(call=_TEXT, args=_list({}), result={})),
    "position": ("foxglove.PoseInFrame", _object(**_STAMP, pose=_POSE)),
    "way": ("foxglove.PosesInFrame", _object(**_STAMP, poses=_list(_POSE))),
    "belief": (
        "foxglove.Grid",
        _object(
            **_STAMP,
            pose=_POSE,
            column_count=_INTEGER,
            cell_size=_numbers("xy"),
            row_stride=_INTEGER,
            cell_stride=_INTEGER,
            fields=_list(_PACKED),
            data=_DATA,
        ),
    ),
}
"""Name and JSON schema of the messages of each topic in JSON."""


def stamp(nanoseconds: int) -> dict[str, Any]:
    """Return the fields that all drawn messages share."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return {"timestamp": {"sec": seconds, "nsec": rest}, "frame_id": "lattice"}


def pose(metres: Sequence[float]) -> dict[str, Any]:
    """Return a pose without rotation at a point (x, y, z) [m]."""
    position = dict(zip("xyz", metres, strict=True))
    return {"position": position, "orientation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}}


def grid(belief: Tensor, cell: tuple[float, float]) -> dict[str, Any]:
    """Return a belief [R, C] as a grid of bytes, 255 = region of interest.

    Larger maps are averaged onto fewer cells. `cell` is the size of a cell along x and y [m].
    """
    rows, cols = belief.shape
    factor = math.ceil(max(rows, cols) / _MOST_CELLS)
    shape = math.ceil(rows / factor), math.ceil(cols / factor)
    pooled = area_pool(belief, *lattice_weights((rows, cols), shape, belief.device))
    data = (pooled.clamp(0, 1) * 255).round().byte().mT.contiguous().cpu().numpy().tobytes()
    return {
        "pose": pose((0.0, 0.0, 0.0)),
        "column_count": shape[0],  # x runs along a row of the grid
        "cell_size": {"x": rows * cell[0] / shape[0], "y": cols * cell[1] / shape[1]},
        "row_stride": shape[0],
        "cell_stride": 1,
        "fields": [{"name": "belief", "offset": 0, "type": _UINT8}],
        "data": base64.b64encode(data).decode(),
    }
