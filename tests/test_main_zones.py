"""Trainings, wrappers, exports and own planners among zones, obstacles and costs."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.evaluation.comparison import prepare
from marl_framework.evaluation.outlines import zone_outlines
from marl_framework.export import main as export
from marl_framework.integrations.missions import Missions
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.protocol import Decision
from marl_framework.planners.registry import make_planner
from tests.mission.zones import box_zones, feature, touches, write_zones, zone_config
from tests.running import results, run_main
from tests.teams import save_team

COST = "experiment.constraints.cost"
OBSTACLES = "experiment.constraints.obstacles"
CROWDED = (f"{OBSTACLES}.number=4", "observation.no_fly=true", "observation.centred_no_fly=true")


def weights(folder: Path, name: str) -> str:
    return results(folder / "runs" / name)["weights_sha256"]


RESUMED = ("--resume", "--allow-changed", "learning.training_steps")


@pytest.mark.parametrize(
    ("sets", "other"),
    [
        (CROWDED, (*CROWDED[1:], f"{OBSTACLES}.number=3")),
        (("environment.field=random", "observation.no_fly=true"), None),
    ],
    ids=["obstacles", "fields"],
)
def test_a_resumed_training_among_random_zones_is_the_same(sets, other, tmp_path) -> None:
    assert run_main(tmp_path, "whole", sets=sets) == 0
    assert run_main(tmp_path, "parts", sets=(*sets, "learning.training_steps=2")) == 0
    assert run_main(tmp_path, "parts", *RESUMED, sets=(*sets, "learning.training_steps=4")) == 0
    assert weights(tmp_path, "parts") == weights(tmp_path, "whole")
    if other is not None:
        assert run_main(tmp_path, "other", sets=other) == 0
        assert weights(tmp_path, "other") != weights(tmp_path, "whole")


def test_a_resumed_training_notices_other_zones_and_maps(tmp_path, refused) -> None:
    zones, raster = tmp_path / "zones.geojson", tmp_path / "map.npy"
    simulation = "sensor.simulation"
    one_place = (
        f"{simulation}.kinds=[raster]",
        f"{simulation}.raster.path={raster}",
        f"{simulation}.raster.resolution=0.5",
        f"experiment.constraints.no_fly_zones={zones}",
    )
    write_zones(zones, feature(shapely.box(0, 0, 6, 6)))
    np.save(raster, np.random.default_rng(3).random((400, 400)))
    kept = {file: file.read_bytes() for file in (zones, raster)}
    assert run_main(tmp_path, "t", sets=(*one_place, "learning.training_steps=1")) == 0
    longer = (*one_place, "learning.training_steps=2")
    resume = partial(run_main, tmp_path, "t", *RESUMED, sets=longer)
    write_zones(zones, feature(shapely.box(0, 0, 7, 6)))
    assert f"no_fly_zones: {zones}" in refused(resume)
    zones.write_bytes(kept[zones])
    np.save(raster, np.random.default_rng(4).random((400, 400)))
    assert f"raster.path: {raster}" in refused(resume)
    raster.write_bytes(kept[raster])
    assert resume() == 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("settings", "without"),
    [
        (CROWDED, f"{OBSTACLES}.number=0"),
        ((f"{COST}.limit=30",), f"{COST}.limit=null"),
        (("experiment.uav.crash_rate=0.1",), "experiment.uav.crash_rate=0"),
    ],
)
def test_an_export_with_observations_refuses_what_it_would_not_know(
    settings: tuple[str, ...], without: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    team = save_team(tmp_path / "team.pt", load_config("params_test.yaml", settings))
    options = ["--checkpoint", str(team), "--format", "torch", "--out", str(tmp_path / "team.pt2")]
    error = refused(export, [*options, "--observations"])
    assert "--observations" in error
    assert f"--set {without}" in error
    assert export([*options, "--observations", "--set", without]) == 0
    assert export(options) == 0


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (f"{OBSTACLES}.number=17", f"{OBSTACLES}.number"),
        (f"{OBSTACLES}.side=[9, 4]", "side [9, 4]"),
        (f"{OBSTACLES}.height=[-1, 4]", f"{OBSTACLES}.height"),
        ("experiment.constraints.no_fly_zones=nowhere.json", "no_fly_zones: nowhere.json"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(setting, named, tmp_path, refused) -> None:
    assert named in refused(run_main, tmp_path, "t", f"--set={setting}")
    assert not (tmp_path / "runs").exists()


def test_zones_need_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zones(tmp_path / "z.json", feature(shapely.box(9, 9, 16, 16)))
    monkeypatch.setitem(sys.modules, "shapely", None)
    with pytest.raises(ConfigError, match=r"marl_framework\[geo\]"):
        MissionEnvironment(zone_config(path), 1, "cpu")
    MissionEnvironment(zone_config(None, 3), 1, "cpu")  # obstacles do not


def test_wrappers_show_and_keep_the_masks() -> None:
    missions = Missions(zone_config(None, 8, agents=4, budget=9), 6, seed=5)
    missions.reset()
    env, generator = missions.environment, torch.Generator().manual_seed(0)
    closed = env.lattice.table() & ~missions.state.moves
    assert closed.any()
    for _ in range(env.episode_length):
        masks, before = missions.masks(), missions.state.positions.clone()
        assert masks.equal(env.lattice.allowed(before, missions.state.moves))
        wanted = torch.rand(masks.shape, generator=generator).argmax(-1)  # allowed or not
        flown = missions.resolve_conflicts(wanted)
        assert masks.gather(2, flown.unsqueeze(2)).all()
        missions.step(wanted)


class IntoZones:
    """Flies where the first zone's move leads, allowed or not."""

    name = "into_zones"

    def __init__(self, environment: MissionEnvironment) -> None:
        self.lattice = environment.lattice

    def act(self, state: Any, generator: torch.Generator) -> Decision:
        masks = self.lattice.boundary_mask(state.positions)
        closed = masks & ~self.lattice.allowed(state.positions, state.moves)
        return Decision((masks.int() + closed.int()).argmax(-1), masks)


def test_an_own_planner_may_not_enter_a_zone(tmp_path: Path) -> None:
    path = write_zones(tmp_path / "z.json", feature(shapely.box(-1, 12, 31, 18)))
    env = MissionEnvironment(zone_config(path), 4, "cpu")
    planner = make_planner("tests.test_main_zones.IntoZones", env)
    state = env.reset()
    state.positions[:] = torch.tensor([1, 2, 1])  # beside it
    with pytest.raises(ConfigError, match="zone"):
        planner.act(state, env.generator)


def test_a_record_knows_where_its_zones_lie(tmp_path: Path) -> None:
    ring = shapely.box(12, 12, 90, 26).difference(shapely.box(14, 14, 20, 20))
    outside = feature(shapely.box(60, 60, 68, 68))
    path = write_zones(tmp_path / "z.json", outside, feature(ring, floor=6, height=12))
    config = zone_config(path, 5, agents=2, budget=9)
    flown = prepare(config, torch.device("cpu"), ["random", "coverage"], 3, 1).fly()
    assert flown["random"].boxes is not None
    assert flown["coverage"].boxes is not None
    torch.testing.assert_close(flown["random"].boxes, flown["coverage"].boxes, equal_nan=True)
    for record in flown.values():
        for e in range(3):
            zone, *boxes = zone_outlines(record.alone(e))
            assert (zone.floor, zone.height, zone.label) == (6, 12, "closed from 6 m to 12 m")
            shape = shapely.Polygon(zone.rings[0], zone.rings[1:])
            assert shape.equals(ring.intersection(shapely.box(0, 0, 30, 30)))  # within the area
            drawn = box_zones(record.boxes[e])  # type: ignore[index]
            assert [shapely.Polygon(box.rings[0]).area for box in boxes] == pytest.approx(
                [box.area for box, _, _ in drawn]
            )
            for n in range(2):
                path = record.path[e, :, n].double().numpy()
                assert not touches(path, [(ring, 6.0, 12.0), *drawn])
