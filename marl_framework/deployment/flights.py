"""Flights over windows of a measured map or over a field, and their output files."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import Place, find_place
from marl_framework.config.model import Config
from marl_framework.deployment.flight_plans import flight_plans, geofences, home_metres
from marl_framework.deployment.hazards import find_hazards, warn_of_hazards
from marl_framework.deployment.plan_files import write_files
from marl_framework.deployment.schedule import team_schedule
from marl_framework.deployment.survey_files import FRAME, Survey, write_survey
from marl_framework.device import describe_device
from marl_framework.evaluation import mission_page, report
from marl_framework.evaluation.comparison import batch_size, fly_into_run
from marl_framework.evaluation.figures import film_strip, mission_figure, mission_gif
from marl_framework.evaluation.flight import FlightRecord, MissionStreams, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.seeding import DEPLOYMENT
from marl_framework.mission.state import ResetDraws
from marl_framework.mission.terrains.raster import SYMMETRY
from marl_framework.observations.completion import MapCompletion, make_completion
from marl_framework.planners import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.folder import RunFolder

FOLDER = "mission_{:03d}"


def deploy(
    config: Config, device: torch.device, checkpoint: Checkpoint | None, options: argparse.Namespace
) -> int:
    """Fly windows of a map, or a field; write beliefs, waypoints and figures to a run folder.

    `options` needs `missions`, `html` and the options of `fly_into_run`.
    """
    flights = prepare(config, device, options.missions or 1, checkpoint)

    def write(record: FlightRecord, run: RunFolder, seconds: float) -> None:
        missions = flights.write(record, run.path)
        results = {
            "planner": record.planner,
            "checkpoint": None if checkpoint is None else checkpoint.name,
            "coordinate_frame": FRAME,
            "coordinate_system": None if flights.place is None else flights.place.system,
            "cell_size_m": config.geometry.cell_size,
            "missions": missions,
        }
        run.write_summary(results, {"seconds": seconds}, {"device": describe_device(device)})
        warn_of_hazards(missions, config.deployment.separation)
        flights.draw(record, run.path, options.html)

    return fly_into_run(config, device, options, lambda _: flights.fly(), write)


class UprightStreams(MissionStreams):
    """Random draws in which map windows and zones are neither turned nor mirrored."""

    def draw_reset(self) -> ResetDraws:
        """Draw the random numbers for the start of E missions."""
        draws = super().draw_reset()
        env = self._single
        if env.terrain.raster is not None:
            (windows,) = draws.terrain.numbers  # a deployment has no terrain except the map
            windows[:, SYMMETRY] = 0
        origins = env.terrain.window_origins(draws.terrain)
        if env.zones is not None and origins is not None:
            moves = [env.zones.moves((x, y)) for x, y in origins.tolist()]
            draws.moves = torch.stack(moves).to(env.device)
        return draws


@dataclass
class Deployment:
    """A planner, and the map windows or the field over which it flies."""

    environment: MissionEnvironment
    planner: Planner
    missions: int
    """Number of windows, or of flights over the field."""
    place: Place | None
    """Location of the map or field on Earth; None if unknown."""
    completion: MapCompletion | None
    """Completes the final beliefs; None for no completed maps."""

    def fly(self) -> FlightRecord:
        """Fly over the windows, or terrains, drawn with `environment.seed`."""
        seed = self.environment.config.environment.seed
        return evaluate(
            self.environment, self.planner, self.missions, seed, DEPLOYMENT,
            keep_maps=self.missions, streams=UprightStreams, completion=self.completion,
        )  # fmt: skip

    def write(self, record: FlightRecord, folder: Path) -> list[dict[str, Any]]:
        """Write each mission to a subfolder; return the list of entries for `summary.json`."""
        origins = record.window_origins
        corners = [(0.0, 0.0)] * self.missions if origins is None else origins.tolist()
        finals, cell = report.final_values(record), self.environment.config.geometry.cell_size
        entries = []
        for index, (x, y) in enumerate(corners):
            place = None if self.place is None else self.place.moved(x, y)
            mission = record.alone(index)
            counts = mission.active[0].sum(0).tolist()
            tracks = [mission.path[0, :count, n].double().numpy() for n, count in enumerate(counts)]
            completed = None if record.completed is None else record.completed[index].numpy()
            survey = Survey(record.belief[index].numpy(), completed, tracks, (x, y), cell, place)
            target = folder / FOLDER.format(index)
            write_survey(survey, target)
            plans = {} if place is None else self._write_plans(survey, place, target)
            values = {name: value[index].item() for name, value in finals.items()}
            entries.append({"folder": target.name, "window_origin_m": [x, y], **plans, **values})
        return entries

    def draw(self, record: FlightRecord, folder: Path, html: bool = False) -> None:
        """Draw figures of each mission; with `html`, also write an interactive page."""
        for index in range(self.missions):
            target = folder / FOLDER.format(index)
            mission_figure(record, index, target / "mission.png")
            film_strip(record, index, target / "film.png")
            mission_gif(record, index, target / "mission.gif")
            if html:
                page = mission_page.MissionPage({record.planner: record}, index)
                page.write(target / "mission.html")

    def _write_plans(self, survey: Survey, place: Place, folder: Path) -> dict[str, Any]:
        """Write the files of all UAVs; return durations and hazards for `summary.json`."""
        config, zones = self.environment.config, self.environment.zones
        settings, top = config.deployment, config.geometry.altitudes[-1]
        home = home_metres(place, settings.home)
        schedule = team_schedule(survey.tracks, home, top, settings)
        fences = [] if zones is None else geofences(zones, place, config, survey.origin, home)
        for flight in flight_plans(schedule, place, settings, fences):
            write_files(flight, folder)
        durations = schedule.arrivals[-1].round(1).tolist()
        hazards = find_hazards(schedule, settings.separation, zones, survey.origin)
        return {"duration_s": max(durations), "uav_durations_s": durations, **hazards}


def prepare(
    config: Config, device: torch.device, missions: int, checkpoint: Checkpoint | None
) -> Deployment:
    """Create the environment and the planner of `experiment.policy`.

    Raises ConfigError if the map or the checkpoint is missing or incompatible, if UAVs may crash,
    or if `deployment` contradicts the map.
    """
    kinds = config.sensor.simulation.drawn_kinds
    has_field = config.environment.field_file is not None
    if not has_field and kinds != ("raster",):
        raise ConfigError(
            f"sensor.simulation.kinds: deployment requires a measured map or a field, got "
            f"{', '.join(kinds)}; set kinds to [raster] and sensor.simulation.raster.path to a "
            "file, or environment.field to a GeoJSON file"
        )
    if has_field and "raster" in kinds:
        raise ConfigError(
            "environment.field: not supported on a measured map in deployment; set it to null"
        )
    if config.missions.has_crashes:
        raise ConfigError("experiment.uav.crash_rate: not supported in deployment; set it to 0")
    if config.experiment.policy == "learned" and checkpoint is None:
        raise ConfigError("experiment.missions.mission_mode: deployment requires --checkpoint")
    batch = batch_size(config, missions)
    environment = MissionEnvironment(config, batch, device, DEPLOYMENT)
    planner = make_planner(config.experiment.policy, environment, checkpoint)
    if environment.zones is not None:  # raise errors for closed windows before writing anything
        for first in range(0, missions, batch):
            UprightStreams(environment, config.environment.seed, DEPLOYMENT, first).draw_reset()
    completion = make_completion(config, environment.lattice)
    return Deployment(environment, planner, missions, _place(environment), completion)


def _place(environment: MissionEnvironment) -> Place | None:
    """Return the location of the map or field, from its file or from `deployment.origin`."""
    raster, config = environment.terrain.raster, environment.config
    settings = config.deployment
    name = config.environment.field_file or config.sensor.simulation.raster.path
    place = None if raster is None else raster.place
    if place is not None and settings.origin is not None:
        raise ConfigError(f"deployment.origin: {name} already has coordinates; set it to null")
    place = place or find_place(settings.origin)
    if place is not None:
        home_metres(place, settings.home)  # raises ConfigError for a distant home
    elif settings.home is not None:
        raise ConfigError(f"deployment.home: {name} has no coordinates; set deployment.origin")
    return place
