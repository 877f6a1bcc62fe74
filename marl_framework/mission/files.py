"""Checksums of the files that missions read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from marl_framework.config.field import KEY as FIELD
from marl_framework.config.field import RANDOM
from marl_framework.config.model import Config
from marl_framework.mission.no_fly_zones import KEY as ZONES
from marl_framework.mission.terrains.raster_file import locate


def file_checksum(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_read(config: Config) -> dict[str, str]:
    """Return the checksums of the map file, zones and field, by `key: file name`."""
    files: dict[str, Path] = {}
    raster, zones = config.sensor.simulation.raster.path, config.experiment.constraints.no_fly_zones
    if raster is not None and "raster" in config.sensor.simulation.kinds:
        files[f"sensor.simulation.raster.path: {raster}"] = locate(raster)
    if zones is not None:
        files[f"{ZONES}: {zones}"] = locate(zones)
    field = config.environment.field
    if field not in (None, RANDOM):
        files[f"{FIELD}: {field}"] = locate(field)
    return {name: file_checksum(path) for name, path in files.items()}
