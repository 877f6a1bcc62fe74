"""A page of what one UAV knows, renewed while it flies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marl_framework.command_line import warn
from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.flying.dry_run import Moment, record_of
from marl_framework.flying.messages import Reading
from marl_framework.flying.pilot import Pilot
from marl_framework.flying.simulated import World

_REFRESH = 5  # of a browser [s]


class LivePage:
    """Writes the page after each reading of a UAV.

    `name` is that of the UAV on the page; `shows_truth` says whether the map of `world` is the real
    one.
    """

    def __init__(self, path: Path, world: World, name: str, shows_truth: bool) -> None:
        self._path, self._world, self._name = path, world, name
        self._shows_truth = shows_truth
        self._readings: list[Reading] = []
        self._moves, self._failed = 0, False

    def update(self, pilot: Pilot, moments: Sequence[Moment]) -> None:
        """Write the page again if the pilot has fused a reading; `moments` has one each.

        If it cannot be written, a warning says so, and the page stays as it is.
        """
        if len(moments) == self._moves or self._failed:
            return
        self._moves = len(moments)
        self._readings.append(pilot.reading)
        for uav in moments[-1].heard:
            if (reading := pilot.inbox.get(Reading, uav, pilot.move)) is not None:
                self._readings.append(reading)
        self._write(pilot, _REFRESH)

    def close(self, pilot: Pilot) -> None:
        """Write the page for the last time; browsers then stop reloading it."""
        if self._moves and not self._failed:
            self._write(pilot, None)

    def _write(self, pilot: Pilot, refresh: int | None) -> None:
        record = record_of(self._world, self._readings, pilot.move, self._name)
        page = MissionPage({self._name: record}, 0, refresh, self._shows_truth)
        try:
            page.write(self._path)
        except OSError as error:
            self._failed = True
            warn(f"warning: {self._path}: {error.strerror}; the page is not renewed any more")
