"""Error rates of a camera and its detector, from frames of ground whose map is known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.geography import find_place
from marl_framework.config.model import Config
from marl_framework.flying.frame_camera import FrameReader
from marl_framework.flying.frames import FrameFolder, UnusableFrameError, counting
from marl_framework.flying.messages import Bits
from marl_framework.mission.camera import Camera
from marl_framework.mission.terrains.raster import upsample
from marl_framework.mission.terrains.raster_file import RasterMap, check_threshold, read_raster

_NORMAL = NormalDist().inv_cdf(0.975)
_MOST_REASONS = 9  # in a message
_LOWEST, _HIGHEST = 1e-3, 0.49
"""Limits of rates in the table; a rate of 0 would trust a reading forever."""


class Rate(NamedTuple):
    """A share of wrong cells."""

    rate: float
    low: float
    high: float
    """Ends of its 95 % confidence interval."""
    cells: int


@dataclass
class Count:
    """Wrong cells and all cells, one entry per frame."""

    wrong: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)

    def add(self, wrong: Bits) -> None:
        """Add the cells of a frame."""
        if wrong.size:
            self.wrong.append(int(wrong.sum()))
            self.cells.append(wrong.size)

    def rate(self) -> Rate | None:
        """Return the share of wrong cells with its interval; None without cells."""
        return wilson(self.wrong, self.cells) if sum(self.cells) else None


@dataclass
class Calibration:
    """Errors of readings by altitude [m]."""

    misses: dict[float, Count]
    """Cells of interest, and those that read as negative."""
    false_alarms: dict[float, Count]
    """Other cells, and those that read as positive."""
    ignored: Counter[str]
    """Number of frames that gave no reading, by reason."""

    def table(self) -> dict[float, float]:
        """Return `sensor.model.table`: the mean of both rates, at altitudes where both are known.

        Raises ConfigError if there are none, or if readings are wrong more often than right.
        """
        table = {}
        for altitude, misses in self.misses.items():
            miss, false_alarm = misses.rate(), self.false_alarms[altitude].rate()
            if miss is not None and false_alarm is not None:
                rate = max((miss.rate + false_alarm.rate) / 2, _LOWEST)
                if rate > _HIGHEST:
                    text = f"flying.camera: at {altitude:g} m, {rate:.0%} of the cells are wrong"
                    raise ConfigError(f"{text}; correct bands, threshold or above, or fly lower")
                table[altitude] = round(rate, 4)
        if not table:
            text = "--frames: no altitude has readings of cells inside and outside the ROI"
            raise ConfigError(f"{text}; ignored frames: {_describe(self.ignored)}")
        return table


def wilson(wrong: Sequence[int], cells: Sequence[int]) -> Rate:
    """Return the share of wrong cells and its interval (Wilson 1927), from counts per frame.

    The cells of a frame err together, so the number of cells is divided by the ratio of the
    variance between frames to the binomial variance, if above 1 (Rao and Scott 1992).
    """
    number, total, errors = len(cells), sum(cells), sum(wrong)
    rate, size = errors / total, float(total)
    if number > 1 and 0 < errors < total:
        spread = sum((e - rate * n) ** 2 for e, n in zip(wrong, cells, strict=True))
        binomial = total * rate * (1 - rate)
        size /= max(1.0, number / (number - 1) * spread / binomial)
    square = _NORMAL**2 / size
    centre = (rate + square / 2) / (1 + square)
    half = math.sqrt(square * (rate * (1 - rate) + square / 4)) / (1 + square)
    return Rate(rate, max(0.0, centre - half), min(1.0, centre + half), total)


def _describe(ignored: Counter[str]) -> str:
    reasons = [f"{n} x {text}" for text, n in ignored.most_common(_MOST_REASONS)]
    if len(ignored) > len(reasons):
        reasons.append("…")
    return ", ".join(reasons) or "none"


def report(found: Calibration) -> str:
    """Return the rates by altitude, and the numbers of ignored frames, as lines of text."""
    lines = [f"{'altitude':>8}  {'frames':>6}  {'miss':34}  false alarm"]
    for altitude, misses in found.misses.items():
        counts = misses, found.false_alarms[altitude]
        miss, false_alarm = (_show(count.rate()) for count in counts)
        frames = max(len(count.cells) for count in counts)
        lines.append(f"{altitude:>6g} m  {frames:>6}  {miss:34}  {false_alarm}")
    if found.ignored:
        lines.append(f"ignored frames: {_describe(found.ignored)}")
    return "\n".join(lines)


def _show(found: Rate | None) -> str:
    if found is None:
        return "-"
    rate, low, high, cells = found
    return f"{rate:.4f} ({low:.4f} to {high:.4f}) of {cells}"


def calibrate(config: Config, folder: Path) -> Calibration:
    """Compare readings from the frames of a folder with the map in `sensor.simulation.raster`.

    Each frame is read as a frame at the nearest altitude of the lattice, over the footprint that
    lies below its camera. Its cells begin at a pixel of the map, as in missions. Raises ConfigError
    if the map or the detector cannot be used.
    """
    settings = config.sensor.simulation.raster
    if isinstance(settings.threshold, str):
        raise ConfigError(f"--threshold {settings.threshold}: use a value, not a percentile")
    raster = read_raster(settings)
    check_threshold(raster, settings.threshold)
    place = raster.place or find_place(config.deployment.origin)
    reader, sides = FrameReader(config, place), Camera(config, "cpu").sides
    levels, ignored = np.array(config.geometry.altitudes), Counter[str]()
    misses, false_alarms = ({height: Count() for height in levels.tolist()} for _ in range(2))
    for frame in FrameFolder(folder).new(ignored):
        with counting(ignored):
            pose = reader.pose(frame)
            level = int(np.abs(levels - pose.altitude).argmin())
            altitude, shape = float(levels[level]), (sides[0][level], sides[1][level])
            if abs(altitude - pose.altitude) > config.flying.camera.position_tolerance:
                raise UnusableFrameError("altitude")
            corner, truth = _truth(raster, config, (pose.x, pose.y), shape)
            reading = reader.read(frame, pose, corner, shape)
            misses[altitude].add(~reading[truth])
            false_alarms[altitude].add(reading[~truth])
    return Calibration(misses, false_alarms, ignored)


def _truth(
    raster: RasterMap, config: Config, middle: tuple[float, float], shape: tuple[int, int]
) -> tuple[tuple[float, float], Bits]:
    """Return the lower left corner [m] of a footprint around `middle`, and its cells on the map."""
    sizes, pixel = np.array(shape) * config.geometry.cell_size, raster.resolution
    first = np.floor((np.array(middle) - sizes / 2) / pixel + 1e-9).astype(int)
    last = first + np.ceil(sizes / pixel - 1e-9).astype(int)
    window = raster.values[first[0] : last[0], first[1] : last[1]]
    if (first < 0).any() or (last > raster.values.shape).any() or np.isnan(window).any():
        raise UnusableFrameError("outside the measured map")
    x, y = sizes / pixel
    values = upsample(torch.from_numpy(window.copy())[None], (x, y), shape)[0].numpy()
    truth: Bits = values > config.sensor.simulation.raster.threshold
    return (float(first[0] * pixel), float(first[1] * pixel)), truth
