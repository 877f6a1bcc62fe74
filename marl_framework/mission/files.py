"""Checksums of the files that missions read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from marl_framework.config.model import Config
from marl_framework.config.named_maps import FIELD_KEY, MAP_KEY, locate
from marl_framework.mission.no_fly_zones import KEY as ZONES


def file_checksum(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_read(config: Config) -> dict[str, str]:
    """Return the checksums of the map file, zones and field, by `key: file name`."""
    files: dict[str, Path] = {}
    raster, zones = config.sensor.simulation.raster.path, config.experiment.constraints.no_fly_zones
    if raster is not None and "raster" in config.sensor.simulation.kinds:
        files[f"{MAP_KEY}: {raster}"] = locate(raster)
    if zones is not None:
        files[f"{ZONES}: {zones}"] = locate(zones, ZONES)
    if (field := config.environment.field_file) is not None:
        files[f"{FIELD_KEY}: {field}"] = locate(field, FIELD_KEY)
    return {name: file_checksum(path) for name, path in files.items()}
