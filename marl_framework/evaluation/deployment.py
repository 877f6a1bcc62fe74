"""Deployment: fly windows of a measured map; export beliefs, waypoints and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.evaluation import (
    georeferenced,
    local_frame,
    mission_files,
    mission_page,
    report,
)
from marl_framework.evaluation.comparison import batch_size
from marl_framework.evaluation.figures import mission_figure
from marl_framework.evaluation.film import film_strip, mission_gif
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.evaluation.flight_plans import Approach
from marl_framework.evaluation.missions import MissionStreams
from marl_framework.mission.draws import ResetDraws
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.seeding import DEPLOYMENT
from marl_framework.mission.terrains.geotiff import Place, place_at, require_rasterio
from marl_framework.mission.terrains.raster import SYMMETRY
from marl_framework.planners import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint


class UprightStreams(MissionStreams):
    """Mission draws whose windows of the map, and the zones there, lie as they do on the map."""

    def draw_reset(self) -> ResetDraws:
        """Draw the start of E missions."""
        draws = super().draw_reset()
        (windows,) = draws.terrain.numbers  # a deployment flies over a raster alone
        windows[:, SYMMETRY] = 0
        env = self._single
        origins = env.terrain.window_origins(draws.terrain)
        if env.zones is not None and origins is not None:
            moves = [env.zones.moves((x, y)) for x, y in origins.tolist()]
            draws.moves = torch.stack(moves).to(env.device)
        return draws


@dataclass
class Deployment:
    """A planner and the windows of a map that it flies."""

    environment: MissionEnvironment
    planner: Planner
    missions: int
    """Number of windows."""
    place: Place | None
    """Where the map lies; None if nobody says."""

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
        """Write a folder of data per mission; return the missions' entries in `summary.json`.

        Args:
            record: result of `fly`.
            folder: parent of the missions' folders.
        """
        assert record.window_origins is not None  # a deployment flies over a raster alone
        finals = report.final_values(record)
        entries = []
        for index, origin in enumerate(record.window_origins.tolist()):
            target = _mission_folder(folder, index)
            target.mkdir()
            nearest = self._write_data(record.belief[index], record.tracks(index), origin, target)
            values = {name: value[index].item() for name, value in finals.items()}
            entries.append({"folder": target.name, "window_origin_m": origin, **nearest, **values})
        return entries

    def draw(self, record: FlightRecord, folder: Path, html: bool = False) -> None:
        """Draw each mission into its folder.

        Args:
            record: result of `fly`.
            folder: as for `write`.
            html: also write a page to watch each mission on.
        """
        for index in range(self.missions):
            target = _mission_folder(folder, index)
            mission_figure(record, index, target / "mission.png")
            film_strip(record, index, target / "film.png")
            mission_gif(record, index, target / "mission.gif")
            if html:
                mission_page.write_page({record.planner: record}, index, target / "mission.html")

    def _write_data(
        self, belief: Tensor, paths: list[Tensor], origin: list[float], folder: Path
    ) -> dict[str, Any]:
        """Write belief and waypoints, on Earth and with mission files where the place is known.

        Returns what `summary.json` says of the mission files.
        """
        local_frame.write_belief(belief, folder)
        local_frame.write_table(paths, folder)
        if self.place is None:
            local_frame.write_image(belief, folder)
            local_frame.write_waypoints(paths, origin, folder)
            return {}
        place, config = self.place.moved(*origin), self.environment.config
        georeferenced.write_belief(belief, config.geometry.cell_size, place, folder)
        georeferenced.write_waypoints(paths, place, folder)
        where = (place, config, (origin[0], origin[1]))
        zones = self.environment.zones
        fences = [] if zones is None else mission_files.geofence(zones, *where)
        nearest = mission_files.write_missions(paths, place, config, folder, fences)
        said: dict[str, Any] = {}
        if nearest is not None:
            said["closest_approach"] = _describe(nearest, paths)
        if zones is not None:
            said["through_zones"] = mission_files.ways_through_zones(zones, paths, *where)
        return said


def prepare(
    config: Config, device: torch.device, missions: int, checkpoint: Checkpoint | None
) -> Deployment:
    """Create the environment and the planner that `experiment.policy` names.

    Raises:
        ConfigError: the map or the checkpoint is missing or does not fit, UAVs are to crash, or
            `deployment` contradicts the map.
    """
    if config.sensor.simulation.drawn_kinds != ("raster",):
        kinds = ", ".join(config.sensor.simulation.kinds)
        raise ConfigError(
            f"sensor.simulation.kinds: deployment needs a measured map, not {kinds}; "
            "set it to [raster], and sensor.simulation.raster.path to the file"
        )
    if config.missions.has_crashes:
        raise ConfigError(
            "experiment.uav.crash_rate: a deployment plans the flight of UAVs that arrive; "
            "set it to 0"
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
    if environment.zones is not None:  # errors of windows before anything is written
        for first in range(0, missions, batch):
            UprightStreams(environment, config.environment.seed, DEPLOYMENT, first).draw_reset()
    return Deployment(environment, planner, missions, _place(environment))


def _place(environment: MissionEnvironment) -> Place | None:
    """Return where the map lies: what its file says, or `deployment.origin`."""
    raster, settings = environment.terrain.raster, environment.config.deployment
    name = environment.config.sensor.simulation.raster.path
    found = None if raster is None else raster.place
    if settings.origin is not None:
        if found is not None:
            raise ConfigError(f"deployment.origin: {name} says where it lies; leave it null")
        require_rasterio("deployment.origin", "it places the map on Earth")
        found = place_at(*settings.origin)
    if found is not None:
        mission_files.home_metres(found, settings.home)  # or an error
    elif settings.home is not None:
        raise ConfigError(
            f"deployment.home: {name} has no coordinates; place it with deployment.origin"
        )
    return found


def _mission_folder(folder: Path, index: int) -> Path:
    return folder / f"mission_{index:03d}"


def _describe(nearest: Approach, paths: Sequence[Tensor]) -> dict[str, Any]:
    """Return what `summary.json` says of the place where two UAVs come nearest."""
    readings = max(len(paths[uav - 1]) for uav in nearest.uavs)
    where = mission_files.describe_leg(nearest.leg, readings)
    return {"metres": round(nearest.metres, 3), "uavs": list(nearest.uavs), "where": where}
