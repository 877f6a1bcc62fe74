"""Compare planners on the same missions and write the results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation import report
from marl_framework.evaluation.figures import curves_figure, mission_figure
from marl_framework.evaluation.film import film_strip, mission_gif
from marl_framework.evaluation.flight import FlightRecord, evaluate, warn_without_interest
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint, with_team
from marl_framework.runs.files import write_json
from marl_framework.runs.folder import describe_environment

SPLIT = "test"
_BATCH_BYTES = 2**30  # memory budget


@dataclass(frozen=True)
class Comparison:
    """Planners and the missions they all fly."""

    environments: Mapping[str, MissionEnvironment]
    """The same missions for each planner, with the observations it needs."""
    planners: Mapping[str, Planner]
    missions: int
    seed: int
    settings: Mapping[str, Any]
    """Settings for `results.json`."""

    @property
    def device(self) -> torch.device:
        """Of the environments."""
        return next(iter(self.environments.values())).device

    def fly(self) -> dict[str, FlightRecord]:
        """Fly all missions with each planner; print the time each took."""
        records = {}
        for name, planner in self.planners.items():
            start = time.perf_counter()
            record = evaluate(self.environments[name], planner, self.missions, self.seed)
            records[name] = replace(record, planner=name)
            seconds = time.perf_counter() - start
            print(f"{name}: {self.missions} missions in {seconds:.1f} s", flush=True)
        warn_without_interest(record.metrics["roi_entropy"][:, 0])
        return records

    def results(self, records: Mapping[str, FlightRecord]) -> dict[str, Any]:
        """Return the results of the flights, see `report.results`."""
        return report.results(records, self.settings, describe_environment(self.device))


def prepare(
    config: Config,
    device: torch.device,
    names: list[str],
    missions: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
    greedy: bool = True,
    teams: Mapping[str, Checkpoint] | None = None,
) -> Comparison:
    """Create the environment and the planners, so that bad input fails before any flight.

    Args:
        config: configuration of the missions.
        device: device of environment and networks.
        names: planners, see `planners.registry.make_planner`.
        missions: number of missions of each planner.
        seed: evaluation seed.
        checkpoint: trained team, for `learned`.
        greedy: trained teams take their most probable actions instead of sampling.
        teams: other trained teams, by the names that stand for them in `names`.

    Raises:
        ConfigError: a planner or the terrain cannot be created.
    """
    teams = teams or {}
    batch = batch_size(config, missions)
    settings = {
        "policies": names,
        "missions": missions,
        "seed": seed,
        "split": SPLIT,
        "batch": batch,
        "greedy": greedy,
        "checkpoint": None if checkpoint is None else checkpoint.name,
        "teams": {name: team.name for name, team in teams.items()},
        "training_step": None if checkpoint is None else checkpoint.payload.get("training_step"),
        "terrain": list(config.sensor.simulation.kinds),
        "agents": config.experiment.missions.n_agents,
        "communication_range": config.experiment.uav.communication_range,
        "configuration": config_to_dict(config),
    }
    shared = MissionEnvironment(config, batch, device, SPLIT)
    environments = dict.fromkeys(names, shared)
    for name, team in teams.items():
        environments[name] = MissionEnvironment(with_team(config, team), batch, device, SPLIT)
    planners = {
        name: make_planner(
            LEARNED if name in teams else name,
            environments[name],
            teams.get(name, checkpoint),
            greedy,
        )
        for name in names
    }
    return Comparison(environments, planners, missions, seed, settings)


def write(text: str, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write a table to `table.txt` and results to `results.json`; return the files."""
    files = [folder / "results.json", folder / "table.txt"]
    write_json(files[0], results)
    files[1].write_text(text, encoding="utf-8")
    return files


def draw(
    records: Mapping[str, FlightRecord], results: Mapping[str, Any], folder: Path
) -> list[Path]:
    """Draw the curves, each policy's first mission, and the first policy's mission as a GIF.

    Returns:
        The files.
    """
    files = [folder / "curves.png"]
    curves_figure(results, files[0])
    for name, record in records.items():
        files += [folder / f"mission_{name}.png", folder / f"film_{name}.png"]
        mission_figure(record, 0, files[-2])
        film_strip(record, 0, files[-1])
    name, record = next(iter(records.items()))
    files.append(folder / f"mission_{name}.gif")
    mission_gif(record, 0, files[-1])
    return files


def batch_size(config: Config, missions: int) -> int:
    """Return the number of missions per batch, for the fewest equal batches that fit in memory.

    It depends on the configuration only, so that results are the same on any machine.
    """
    rows, cols = config.geometry.map_shape
    maps = config.missions.most_agents + 10  # per mission: beliefs and work arrays, float32
    largest = max(1, _BATCH_BYTES // (4 * maps * rows * cols))
    return -(-missions // -(-missions // largest))
