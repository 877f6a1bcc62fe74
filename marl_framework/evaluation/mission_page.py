"""HTML page of a mission, usable offline: maps, paths and curves after each reading."""

from __future__ import annotations

import base64
import html
import json
import math
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.colors import to_hex
from torch import Tensor

from marl_framework.evaluation.figures import BELIEF_COLOURS, uav_lines
from marl_framework.evaluation.flight import FlightRecord
from marl_framework.evaluation.outlines import OUTSIDE, zone_outlines
from marl_framework.kernels.cells import area_pool, lattice_weights
from marl_framework.runs.files import atomic_file, strict

LARGEST = 5_000_000  # size limit of a page [bytes]
_FOLDER, _PARTS = Path(__file__).parent / "page", ("page.html", "page.css", "page.js")
_LEVELS = 100  # number of steps of a stored belief between 0 and 1
_MOST_CELLS = 512  # maximum number of cells along a side; more would not be visible
# Okabe and Ito's colours, safe for colour blindness, with lighter variants for a dark page.
_LINES = [
    {"light": "#0072b2", "dark": "#56b4e9"},
    {"light": "#c45100", "dark": "#ff9d4d"},
    {"light": "#00795a", "dark": "#3fd0a4"},
    {"light": "#a34d80", "dark": "#e59ac4"},
]


class MissionPage:
    """Page of one mission of several policies, side by side, of at most about `LARGEST` bytes.

    A notebook displays the page. Larger maps are averaged onto fewer cells.

    Args:
        records: records by policy, on the CPU, that hold the maps of the same mission `index`.
        index: mission to show.
        refresh: time after which browsers reload the page [s]; None for never.
        shows_truth: whether the page has the true map and metrics.

    Attributes:
        text: the page, in HTML.
    """

    def __init__(
        self,
        records: Mapping[str, FlightRecord],
        index: int = 0,
        refresh: int | None = None,
        shows_truth: bool = True,
    ) -> None:
        records = {name: record.alone(index) for name, record in records.items()}
        shrink, cells = 1, max(next(iter(records.values())).config.geometry.map_shape)
        render = partial(_render_page, records, index, refresh, shows_truth)
        while len((text := render(shrink)).encode()) > LARGEST and shrink < cells:
            shrink *= 2
        self.text = text

    def write(self, path: str | Path) -> None:
        """Write the page to a file."""
        with atomic_file(Path(path)) as file:  # a browser may be reading it
            file.write(self.text.encode())

    def _repr_html_(self) -> str:
        """Return a frame with the page for a notebook."""
        style = "width: 100%; height: 720px; border: 0"
        return f'<iframe srcdoc="{html.escape(self.text)}" style="{style}"></iframe>'


def _render_page(
    records: Mapping[str, FlightRecord],
    index: int,
    refresh: int | None,
    shows_truth: bool,
    shrink: int,
) -> str:
    """Return the page of mission `index`, the records' only mission, with maps of 1 / shrink."""
    config = next(iter(records.values())).config
    area, team = config.environment, config.missions.most_agents
    heights = ", ".join(f"{h:g}" for h in config.geometry.altitudes)
    moves = max(record.config.missions.episode_length for record in records.values())
    parts = {name: (_FOLDER / name).read_text(encoding="utf-8") for name in _PARTS}
    content = _collect_data(records, shrink, shows_truth)
    data = json.dumps(strict(content), separators=(",", ":"))
    return Template(parts["page.html"]).substitute(
        title=html.escape(f"Mission {index}: {', '.join(records)}"),
        subtitle=html.escape(
            f"{team} {'UAVs map' if team > 1 else 'UAV maps'} {area.x_dim:g} × {area.y_dim:g} m in "
            f"{moves} moves, at altitudes of {heights} m"
        ),
        refresh="" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n',
        style=parts["page.css"],
        script=parts["page.js"],
        data=data.replace("<", "\\u003c"),  # a name with </script> must not end the script
    )


def _collect_data(
    records: Mapping[str, FlightRecord], shrink: int, shows_truth: bool
) -> dict[str, Any]:
    first = next(iter(records.values()))
    config = first.config
    rows, cols = config.geometry.map_shape
    factor = shrink * max(1, math.ceil(max(rows, cols) / _MOST_CELLS))
    shape = (math.ceil(rows / factor), math.ceil(cols / factor))
    covered = (rows * config.geometry.cell_size[0], cols * config.geometry.cell_size[1])
    scale = matplotlib.colormaps[BELIEF_COLOURS]
    truth = _average_maps(first.truth[0].float(), shape) > 0.5
    zones = zone_outlines(first)
    closed = [OUTSIDE] if any(zone.is_field for zone in zones) else []
    closed += ["no-fly zone or obstacle"] if any(not zone.is_field for zone in zones) else []
    rounds = max(record.film.shape[1] for record in records.values())
    uavs = max(number for record in records.values() for number in record.numbers)
    return {
        "size": [config.environment.x_dim, config.environment.y_dim],
        "shape": shape,
        "cell": [covered[0] / shape[0], covered[1] / shape[1]],
        "colours": [to_hex(scale(k / _LEVELS)) for k in range(_LEVELS + 1)],
        "uavs": [colour for colour, _ in uav_lines(uavs)],
        "lines": _LINES,
        "zones": [{"rings": zone.rings, "label": zone.label} for zone in zones],
        "closed": " or ".join(closed),
        "truth": _pack(truth.numpy().astype(np.uint8)) if shows_truth else None,
        "policies": [_policy_data(name, record, shape, rounds) for name, record in records.items()],
    }


def _policy_data(
    name: str, record: FlightRecord, shape: tuple[int, int], rounds: int
) -> dict[str, Any]:
    """Return the data of a policy; repeat the last values after the end of a shorter mission."""
    film = _average_maps(_repeat_last(record.film[0], rounds).float(), shape)
    levels = (film * _LEVELS).round().byte().numpy()
    changes = np.diff(levels, axis=0, prepend=np.zeros_like(levels[:1]))  # modulo 256
    sides = torch.tensor(record.config.geometry.cell_size).repeat_interleave(2)
    curves = {
        "footprints": record.footprints[0].transpose(0, 1) * sides,
        "entropy": _repeat_last(record.metrics["roi_entropy"][0], rounds),
        **{name: _repeat_last(record.metrics[name][0], rounds) for name in ("f1", "ece", "brier")},
    }
    return {
        "name": name,
        "numbers": record.numbers,
        "belief": _pack(changes),
        "completed": _completed_data(record, shape),
        "readings": record.active[0].sum(0).tolist(),
        "path": _repeat_last(record.path[0], rounds - 1).transpose(0, 1).tolist(),
        **{name: values.double().numpy().round(4).tolist() for name, values in curves.items()},
    }


def _completed_data(record: FlightRecord, shape: tuple[int, int]) -> dict[str, Any] | None:
    """Return the completed map and its metrics; None without one."""
    if record.completed is None:
        return None
    levels = (_average_maps(record.completed[0], shape) * _LEVELS).round().byte().numpy()
    names = {"entropy": "roi_entropy", "f1": "f1", "ece": "ece"}
    values = {key: record.metrics[f"completed_{of}"][0, -1].item() for key, of in names.items()}
    return {"map": _pack(levels), **values}


def _repeat_last(values: Tensor, rounds: int) -> Tensor:
    """Repeat the last value of `values` [T, ...] until there are `rounds` values."""
    return torch.cat((values, values[-1:].repeat_interleave(rounds - len(values), 0)))


def _average_maps(maps: Tensor, shape: tuple[int, int]) -> Tensor:
    """Average maps [..., R, C] onto a smaller shape."""
    if (full := maps.shape[-2:]) == shape:
        return maps
    return area_pool(maps, *lattice_weights((full[0], full[1]), shape, maps.device))


def _pack(values: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
