"""Flying windows of a measured map, and handing over what was mapped and where the UAVs flew."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
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
"""What coordinates of the waypoints mean."""


class UprightStreams(MissionStreams):
    """Draws missions whose windows are seen as they lie on the map, neither flipped nor turned."""

    origins: Tensor
    """Lower left corners of the windows on the map [m], [E, 2], once they are drawn."""

    def draw_reset(self) -> ResetDraws:
        """Draw the start of E missions."""
        draws = super().draw_reset()
        (windows,) = draws.terrain.numbers  # a deployment flies over a raster alone
        windows[:, SYMMETRY] = 0
        self.origins = self._single.terrain.window_origins(draws.terrain)
        return draws


@dataclass
class Deployment:
    """A planner, ready to fly windows of a map.

    Attributes:
        environment: over the whole map.
        planner: flies all windows.
        missions: windows to fly.
    """

    environment: MissionEnvironment
    planner: Planner
    missions: int
    _streams: list[UprightStreams] = field(default_factory=list)

    def fly(self) -> FlightRecord:
        """Fly the windows that `environment.seed` draws."""

        def streams(env: MissionEnvironment, seed: int, split: str, first: int) -> UprightStreams:
            self._streams.append(UprightStreams(env, seed, split, first))
            return self._streams[-1]

        seed = self.environment.config.environment.seed
        return evaluate(
            self.environment, self.planner, self.missions, seed, DEPLOYMENT, self.missions, streams
        )

    def write(self, record: FlightRecord, folder: Path) -> list[dict[str, Any]]:
        """Write a folder for each mission; return what `summary.json` says of each.

        Args:
            record: of `fly`.
            folder: where the missions' folders go.
        """
        origins = torch.cat([s.origins for s in self._streams])[: self.missions].tolist()
        finals = report.final_values(record)
        found = []
        for index, origin in enumerate(origins):
            place = folder / f"mission_{index:03d}"
            place.mkdir()
            write_belief(record.belief[index], place)
            write_waypoints(record.path[index], origin, place)
            figures.mission_figure(record, index, place / "mission.png")
            film.film_strip(record, index, place / "film.png")
            film.mission_gif(record, index, place / "mission.gif")
            values = {name: value[index].item() for name, value in finals.items()}
            found.append({"folder": place.name, "window_origin_m": origin, **values})
        return found


def prepare(
    config: Config, device: torch.device, missions: int, checkpoint: Checkpoint | None
) -> Deployment:
    """Make the world and the planner that `experiment.policy` names.

    Raises:
        ConfigError: there is no map, no checkpoint, or they do not fit.
    """
    if config.sensor.simulation.drawn_kinds != ("raster",):
        kinds = ", ".join(config.sensor.simulation.kinds)
        raise ConfigError(
            f"sensor.simulation.kinds: deployment flies a measured map, not {kinds}; "
            "set it to [raster], and raster.path to the file"
        )
    name = config.experiment.policy
    if name == "learned" and checkpoint is None:
        raise ConfigError(
            "experiment.missions.mission_mode: deployment needs the trained team; give it with "
            "--checkpoint RUN_OR_FILE"
        )
    batch = batch_size(config, missions)
    environment = MissionEnvironment(config, batch, device, DEPLOYMENT)
    planner = make_planner(name, environment, checkpoint)
    return Deployment(environment, planner, missions)


def write_belief(belief: Tensor, folder: Path) -> None:
    """Write P(region of interest) of a mission's window as NPY and as TIFF, both float32.

    The array is x first. In the image columns run along x and rows against y, so north is up.

    Args:
        belief: [R, C], on the host.
        folder: where `belief.npy` and `belief.tiff` go.
    """
    array = belief.float().numpy()
    np.save(folder / "belief.npy", array)
    done, data = cv2.imencode(".tiff", np.ascontiguousarray(np.rot90(array)))
    if not done:
        raise OSError(0, f"{folder / 'belief.tiff'} could not be encoded")
    (folder / "belief.tiff").write_bytes(data.tobytes())


def write_waypoints(path: Tensor, origin: list[float], folder: Path) -> None:
    """Write where each UAV took its readings, as CSV and as GeoJSON, in metres (see `FRAME`).

    Args:
        path: [T + 1, N, 3] in metres, on the host.
        origin: lower left corner (x, y) of the window on the map [m].
        folder: where `waypoints.csv` and `waypoints.geojson` go.
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
