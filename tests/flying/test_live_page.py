"""The page of a UAV in flight is drawn by another process, which may fail."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.flying import live_page
from marl_framework.flying.live_page import LivePage
from tests.evaluation.test_mission_page import data
from tests.flying.dry import config_of, maker, team
from tests.flying.processes import PATIENCE, wait_for

OPTIONS = Namespace(uav=1, camera="simulated")


def watched(folder: Path, path: Path, watch: Callable[[int, Callable[[], None]], None]) -> None:
    """Fly one UAV with its page; `watch` takes the number of readings and the page's renewal."""
    config = config_of(folder, agents=1)
    world, (pilot,), _ = team(config, maker("random", config, folder))
    page = LivePage(path, world, OPTIONS)
    while not pilot.over:
        if not pilot.advance():
            world.clock.advance(0.25)
        page.update(pilot)
        watch(len(pilot.knowledge.moments), lambda: page.update(pilot))
    page.close()


def test_the_page_of_a_uav_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "mission.html", list[tuple[int, dict[str, Any]]]()
    wanted = [6, 4]  # not 5: some readings may be skipped
    monkeypatch.setattr(live_page, "MissionPage", here := Mock(wraps=MissionPage))

    def look(readings: int, renew: Callable[[], None]) -> None:
        def is_drawn() -> bool:
            renew()
            return path.exists() and len(data(path)["policies"][0]["f1"]) == readings + 1

        if readings in wanted[-1:]:
            wanted.pop()
            wait_for(is_drawn, PATIENCE)
            assert 'http-equiv="refresh"' in path.read_text()
            seen.append((readings, data(path)["policies"][0]))

    watched(tmp_path, path, look)
    here.assert_not_called()  # by the process that flies, which has no time for that
    assert 'http-equiv="refresh"' not in path.read_text()
    (policy,) = data(path)["policies"]
    assert policy["name"] == "UAV 1"
    assert [readings for readings, _ in seen] == [4, 6]
    for readings, then in seen:
        assert then["f1"] == policy["f1"][: readings + 1]  # before any reading, and after each
        assert then["path"][0] == policy["path"][0][:readings]


def test_a_page_that_cannot_be_written_ends_no_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "mission.html"
    watched(tmp_path, path, lambda *_: None)
    assert f"warning: {path}: No such file or directory; the page" in capsys.readouterr().err
