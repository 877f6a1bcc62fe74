"""One comparison: planners fly the same missions, and what they map is written down."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.evaluation import figures, film, report
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import Planner
from marl_framework.planners.registry import make_planner
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.folder import describe_environment

SPLIT = "test"
_BATCH_BYTES = 2**30


@dataclass(frozen=True)
class Comparison:
    """Planners, ready to fly the same missions."""

    environment: MissionEnvironment
    planners: Mapping[str, Planner]
    missions: int
    seed: int
    settings: Mapping[str, Any]
    """What `results.json` says about it."""

    def fly(self) -> dict[str, FlightRecord]:
        """Fly all missions with each planner; tell how long it took."""
        records = {}
        for name, planner in self.planners.items():
            start = time.perf_counter()
            records[name] = evaluate(self.environment, planner, self.missions, self.seed)
            seconds = time.perf_counter() - start
            print(f"{name}: {self.missions} missions in {seconds:.1f} s", flush=True)
        return records

    def results(self, records: Mapping[str, FlightRecord]) -> dict[str, Any]:
        """Return everything the flights found, see `report.results`."""
        return report.results(records, self.settings, describe_environment(self.environment.device))


def prepare(
    config: Config,
    device: torch.device,
    names: list[str],
    missions: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
    greedy: bool = True,
) -> Comparison:
    """Make world and planners, so that bad input shows before anything is flown.

    Args:
        config: the missions.
        device: where they are flown.
        names: see `planners.registry.make_planner`.
        missions: how many each planner flies.
        seed: of the missions.
        checkpoint: the trained team, where `names` has it.
        greedy: the trained team takes its best actions, and does not draw them.

    Raises:
        ConfigError: a planner or the terrain cannot be made.
    """
    batch = batch_size(config, missions)
    environment = MissionEnvironment(config, batch, device, SPLIT)
    settings = {
        "policies": names,
        "missions": missions,
        "seed": seed,
        "split": SPLIT,
        "batch": batch,
        "greedy": greedy,
        "checkpoint": None if checkpoint is None else str(checkpoint.path),
        "training_step": None if checkpoint is None else checkpoint.payload.get("training_step"),
        "terrain": list(config.sensor.simulation.kinds),
        "agents": config.experiment.missions.n_agents,
        "communication_range": config.experiment.uav.communication_range,
        "configuration": config_to_dict(config),
    }
    planners = {name: make_planner(name, environment, checkpoint, greedy) for name in names}
    return Comparison(environment, planners, missions, seed, settings)


def draw(records: Mapping[str, FlightRecord], found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw curves, and each policy's first mission as figure and film strip, the first as GIF."""
    curves = folder / "curves.png"
    figures.curves_figure(found, curves)
    paths = [curves]
    for name, record in records.items():
        paths += [folder / f"mission_{name}.png", folder / f"film_{name}.png"]
        figures.mission_figure(record, 0, paths[-2])
        film.film_strip(record, 0, paths[-1])
    name, record = next(iter(records.items()))
    paths.append(folder / f"mission_{name}.gif")
    film.mission_gif(record, 0, paths[-1])
    return paths


def write(
    records: Mapping[str, FlightRecord],
    found: Mapping[str, Any],
    folder: Path,
    drawn: bool = True,
) -> str:
    """Write `results.json`, `table.txt` and, if wanted, figures; return the table."""
    text = report.table_text(records)
    report.write_results(found, folder / "results.json")
    (folder / "table.txt").write_text(text, encoding="utf-8")
    if drawn:
        draw(records, found, folder)
    return text


def batch_size(config: Config, missions: int) -> int:
    """Return how many missions to fly at once: as equal batches as memory allows.

    It depends on the configuration alone, so that results repeat on any machine.
    """
    rows, cols = config.map_shape
    maps = config.experiment.missions.n_agents + 10  # beliefs and scratch memory, float32
    largest = max(1, _BATCH_BYTES // (4 * maps * rows * cols))
    return -(-missions // -(-missions // largest))
