"""Planners are timed over areas and teams."""

from __future__ import annotations

import pytest

from benchmarks.speed import areas
from tests.benchmarks.running import positive, run


@pytest.mark.usefixtures("quick")
def test_each_planner_is_timed_for_each_area_and_team(tmp_path, capsys):
    words = ("--planners", "random,coverage", "--teams", "1,4,99", "--sides", "30,45")
    found = run(areas, tmp_path, *words)
    flown = [(row["side"], row["uavs"], row["planner"]) for row in found["rows"]]
    sizes = [(30, 1), (30, 4), (45, 1), (45, 4), (45, 99)]
    assert flown == [(*size, name) for size in sizes for name in ("random", "coverage")]
    for row in found["rows"]:
        assert positive([row["seconds_plan"], row["seconds_fly"], row["mebibytes"]])
    growth = found["growth"]["coverage"]
    assert growth["positions"] is None  # the largest team fits into one area
    assert isinstance(growth["uavs"], float)
    assert "planning grows with" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_areas_with_as_many_positions_have_no_growth(tmp_path):
    words = ("--planners", "random", "--teams", "2", "--sides", "50,51")
    found = run(areas, tmp_path, *words)
    assert len(found["rows"]) == 2
    assert found["growth"]["random"] == {"positions": None, "uavs": None}
