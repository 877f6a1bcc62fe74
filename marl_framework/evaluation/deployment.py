"""Deployment: fly windows of a measured map; export beliefs, waypoints and figures."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.evaluation import figures, film, report
from marl_framework.evaluation.comparison import batch_size
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.evaluation.missions import MissionStreams
from marl_framework.mission.environment import MissionEnvironment, ResetDraws
from marl_framework.mission.seeding import DEPLOYMENT
from marl_framework.mission.terrains.raster import SYMMETRY
from marl_framework.planners import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint

FRAME = (
    "local: metres from the lower left corner of the mission's window, x to the right, y up, "
    "altitude above ground; not longitude and latitude"
)
"""Coordinate frame of the waypoints, as the files describe it."""


class UprightStreams(MissionStreams):
    """Mission draws whose windows of the map are neither flipped nor rotated."""

    def draw_reset(self) -> ResetDraws:
        """Draw the start of E missions."""
        draws = super().draw_reset()
        (windows,) = draws.terrain.numbers  # a deployment flies over a raster alone
        windows[:, SYMMETRY] = 0
        return draws


@dataclass
class Deployment:
    """A planner and the windows of a map that it flies."""

    environment: MissionEnvironment
    planner: Planner
    missions: int
    """Number of windows."""

    def fly(self) -> FlightRecord:
        """Fly the windows drawn with `environment.seed`."""
        return evaluate(
            self.environment,
            self.planner,
            self.missions,
            self.environment.config.environment.seed,
            DEPLOYMENT,
            keep_maps=self.missions,
            streams=UprightStreams,
        )

    def write(self, record: FlightRecord, folder: Path) -> list[dict[str, Any]]:
        """Write one folder per mission; return the missions' entries in `summary.json`.

        Args:
            record: result of `fly`.
            folder: parent of the missions' folders.
        """
        assert record.window_origins is not None  # a deployment flies over a raster alone
        finals = report.final_values(record)
        entries = []
        for index, origin in enumerate(record.window_origins.tolist()):
            target = folder / f"mission_{index:03d}"
            target.mkdir()
            write_belief(record.belief[index], target)
            write_waypoints(record.path[index], origin, target)
            figures.mission_figure(record, index, target / "mission.png")
            film.film_strip(record, index, target / "film.png")
            film.mission_gif(record, index, target / "mission.gif")
            values = {name: value[index].item() for name, value in finals.items()}
            entries.append({"folder": target.name, "window_origin_m": origin, **values})
        return entries


def prepare(
    config: Config, device: torch.device, missions: int, checkpoint: Checkpoint | None
) -> Deployment:
    """Create the environment and the planner that `experiment.policy` names.

    Raises:
        ConfigError: the map or the checkpoint is missing or does not fit.
    """
    if config.sensor.simulation.drawn_kinds != ("raster",):
        kinds = ", ".join(config.sensor.simulation.kinds)
        raise ConfigError(
            f"sensor.simulation.kinds: deployment needs a measured map, not {kinds}; "
            "set it to [raster], and sensor.simulation.raster.path to the file"
        )
    name = config.experiment.policy
    if name == "learned" and checkpoint is None:
        raise ConfigError(
            "experiment.missions.mission_mode: deployment needs a trained team; "
            "add --checkpoint RUN_OR_FILE"
        )
    batch = batch_size(config, missions)
    environment = MissionEnvironment(config, batch, device, DEPLOYMENT)
    planner = make_planner(name, environment, checkpoint)
    return Deployment(environment, planner, missions)


def write_belief(belief: Tensor, folder: Path) -> None:
    """Write P(region of interest) of a window as `belief.npy` and `belief.tiff`, both float32.

    The array is indexed [x, y]; in the image x points right and y up.

    Args:
        belief: [R, C], on the CPU.
        folder: existing folder.
    """
    array = belief.float().numpy()
    np.save(folder / "belief.npy", array)
    done, data = cv2.imencode(".tiff", np.ascontiguousarray(np.rot90(array)))
    if not done:
        raise OSError(0, f"{folder / 'belief.tiff'}: cannot be encoded")
    (folder / "belief.tiff").write_bytes(data.tobytes())


def write_waypoints(path: Tensor, origin: list[float], folder: Path) -> None:
    """Write the position of each reading to `waypoints.csv` and `waypoints.geojson`.

    Args:
        path: positions in `FRAME` [m], [T + 1, N, 3], on the CPU.
        origin: lower left corner (x, y) of the window on the map [m].
        folder: existing folder.
    """
    tracks: list[list[list[float]]] = path.transpose(0, 1).tolist()
    with (folder / "waypoints.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("uav", "reading", "x_m", "y_m", "altitude_m"))
        for n, track in enumerate(tracks, start=1):
            writer.writerows((n, reading, *point) for reading, point in enumerate(track, start=1))
    features = [
        {
            "type": "Feature",
            "properties": {"uav": n, "readings": len(track)},
            "geometry": {"type": "LineString", "coordinates": track},
        }
        for n, track in enumerate(tracks, start=1)
    ]
    collection = {
        "type": "FeatureCollection",
        "coordinate_frame": FRAME,
        "window_origin_m": origin,
        "features": features,
    }
    text = json.dumps(collection, indent=1, allow_nan=False)
    (folder / "waypoints.geojson").write_text(text + "\n", encoding="utf-8")
