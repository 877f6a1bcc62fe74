"""Maps and tracks of a flight, as files of a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from marl_framework.config import geography
from marl_framework.config.model import Config
from marl_framework.deployment.survey_files import Survey, write_survey
from marl_framework.flying.messages import Place
from marl_framework.mission.environment import MissionEnvironment


def area_place(config: Config) -> geography.Place | None:
    """Return where the area of the missions lies: at `deployment.origin`; None if it is unknown.

    Windows of a measured map may be turned or mirrored, so their place is unknown, too. Raises
    ConfigError if rasterio is missing.
    """
    origin = config.deployment.origin
    if origin is None or "raster" in config.sensor.simulation.kinds:
        return None
    geography.require_rasterio("deployment.origin", "sets the location of the maps")
    return geography.place_at(*origin)


def write_belief(
    belief: Tensor, tracks: Sequence[Sequence[Place]], env: MissionEnvironment, folder: Path
) -> None:
    """Write a belief [R, C] and the places of each UAV's readings into a new folder."""
    metres = [env.lattice.metres(torch.tensor(track)).double().numpy() for track in tracks]
    place, cell = area_place(env.config), env.config.geometry.cell_size
    folder.mkdir()
    write_survey(Survey(belief.cpu().numpy(), metres, (0.0, 0.0), cell, place), folder)
