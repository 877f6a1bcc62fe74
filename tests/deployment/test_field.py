"""Deployments over a field, and their mission files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely

from marl_framework.main import main
from tests.mission.zones import feature, write_zones

CORNER = (11.5687, 48.1492)
SHAPE = shapely.Polygon(
    [CORNER, (11.57, 48.1492), (11.57, 48.1498), (11.5695, 48.1502), (11.5687, 48.1501)],
    [[(11.5691, 48.1495), (11.5694, 48.1495), (11.5694, 48.1497), (11.5691, 48.1497)]],
)
FIELD = (
    "environment.field={field}",
    "experiment.missions.start=random",
    "experiment.missions.n_agents=3",
    "experiment.constraints.budget=9",
)


@pytest.fixture
def deploy(tmp_path: Path) -> Any:
    """Return a function that deploys `coverage` over the field with settings."""

    def run(*settings: str) -> int:
        field = write_zones(tmp_path / "field.geojson", feature(SHAPE), metres=False)
        keys = (
            "experiment.missions.mission_mode=deployment",
            "experiment.policy=coverage",
            f"logging.directory={tmp_path / 'runs'}",
            *(key.format(field=field) for key in (*FIELD, *settings)),
        )
        given = [word for key in keys for word in ("--set", key)]
        options = ["--run-name", "t", "--device", "cpu", "--missions", "2"]
        return main(["--config", "params_test.yaml", *options, *given])

    return run


def test_mission_files_keep_their_photos_in_the_field(deploy, tmp_path: Path) -> None:
    assert deploy() == 0
    near = SHAPE.buffer(1e-8)  # rounded to nine decimals
    for mission in ("mission_000", "mission_001"):
        folder = tmp_path / "runs" / "t" / mission
        for uav in (1, 2, 3):
            items = json.loads((folder / f"uav_{uav}.plan").read_text())["mission"]["items"]
            commands = [item["command"] for item in items]
            photos = [k for k, command in enumerate(commands) if command == 2000]
            places = [items[k - 1]["params"][4:6] for k in photos]
            assert len(places) == 11  # at the start and after each move
            ways = [shapely.LineString([a[::-1], b[::-1]]) for a, b in itertools.pairwise(places)]
            assert near.covers(shapely.MultiLineString(ways))
        belief = np.load(folder / "belief.npy")
        assert (belief == 0).any()
        assert (belief > 0).any()
        assert (folder / "belief.tif").exists()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("sensor.simulation.kinds=[raster]", "environment.field"),
        ("environment.field=random", "sensor.simulation.kinds"),
        ("environment.field=null", "sensor.simulation.kinds"),
    ],
)
def test_a_deployment_needs_a_map_or_a_field(
    setting: str, named: str, deploy, refused, tmp_path: Path
) -> None:
    path = tmp_path / "map.npy"
    np.save(path, np.random.default_rng(3).random((400, 400)))
    raster = "sensor.simulation.raster"
    settings = (f"{raster}.path={path}", f"{raster}.resolution=0.5", setting)
    assert named in refused(deploy, *settings)
    assert not (tmp_path / "runs").exists()
