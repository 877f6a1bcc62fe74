"""Deployments over a map in UTM, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
from affine import Affine

from marl_framework.config.mission import DeploymentConfig
from tests.mission.terrains.test_geotiff import write
from tests.running import results, run_main

MAP = "sensor.simulation.raster"
WEST, SOUTH = 691000.0, 5334870.0
INTO_UTM = pyproj.Transformer.from_crs("EPSG:4326", "EPSG:32632", always_xy=True)


def deploy(folder: Path, path: Path, *settings: str) -> int:
    keys = (
        "experiment.missions.mission_mode=deployment",
        "experiment.policy=coverage",
        "sensor.simulation.kinds=[raster]",
        f"{MAP}.path={path}",
        *settings,
    )
    return run_main(folder, "t", "--missions=2", sets=keys)


def bumps() -> np.ndarray:
    y, x = np.mgrid[:260, :300]
    return (np.sin(x / 17) + np.cos(y / 23)).astype(np.float32)


def write_utm(folder: Path) -> Path:
    at = Affine(0.5, 0, WEST, 0, -0.5, SOUTH + 130)
    return write(folder / "map.tif", bumps(), crs="EPSG:32632", transform=at)


def missions(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = results(folder / "runs" / "t")
    return [(folder / "runs" / "t" / m["folder"], m) for m in found["missions"]]


def tracks(folder: Path) -> list[dict[str, Any]]:
    found = json.loads((folder / "waypoints.geojson").read_text())
    assert found["type"] == "FeatureCollection"
    assert "crs" not in found  # RFC 7946, section 4
    features: list[dict[str, Any]] = found["features"]
    return features


def readings(folder: Path, uav: int) -> np.ndarray:
    """Return x, y and altitude of a UAV's readings from the window's corner."""
    rows = np.genfromtxt(folder / "waypoints.csv", delimiter=",", skip_header=1)
    return rows[rows[:, 0] == uav, 2:]


def corner(mission: dict[str, Any]) -> np.ndarray:
    """Return easting and northing of a window's lower left corner."""
    return np.add(mission["window_origin_m"], (WEST, SOUTH))


def plan(folder: Path, uav: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"uav_{uav}.plan").read_text())
    return found


def simulated_seconds(
    start: np.ndarray, end: np.ndarray, settings: DeploymentConfig, acceleration: float
) -> float:
    """Fly straight from rest to rest in small steps: faster, level, then slower."""
    way = np.abs(end - start)
    length, level = float(np.linalg.norm(way)), float(np.linalg.norm(way[:2]))
    upward = settings.climb_speed if end[2] > start[2] else settings.descent_speed
    limits = [settings.speed * length / level] if level > 0 else []
    limits += [upward * length / way[2]] if way[2] > 0 else []
    done = speed = time = 0.0
    step = 2e-3
    while done < length and time < 1e4:
        braking = speed**2 / (2 * acceleration) >= length - done - speed * step
        speed += -acceleration * step if braking else acceleration * step
        speed = max(acceleration * step, min(speed, *limits))
        done += speed * step
        time += step
    return time
