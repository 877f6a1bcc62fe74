"""Film strip and GIF of one mission's belief over time. Lengths are in metres."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from marl_framework.evaluation.figures import (
    BELIEF_COLOURS,
    TERRAIN_COLOURS,
    draw_map,
    footprint_outline,
    set_limits,
    uav_lines,
)
from marl_framework.evaluation.flight import FlightRecord
from marl_framework.evaluation.zone_outlines import draw_zones

_PANELS = 10  # per strip, including the terrain
_GIF_DPI, _FRAMES_PER_SECOND = 72, 2
_LAST_FRAME_REPEATS = 4


def film_strip(record: FlightRecord, index: int, path: Path) -> None:
    """Draw the ground truth of one mission and its global belief after selected rounds.

    Args:
        record: flight record on the CPU that holds the maps of mission `index`.
        index: number of the mission in the record.
        path: PNG file to write.
    """
    record = record.alone(index)
    rounds = record.film.shape[1] - 1
    shown = np.unique(np.linspace(0, rounds, _PANELS - 1).round().astype(int))
    figure = Figure(figsize=(13.5, 6.2), layout="constrained")
    axes = figure.subplots(2, _PANELS // 2, sharex=True, sharey=True).flatten()
    _terrain(axes[0], record)
    axes[0].set_title("truth")
    for ax in axes[1 + len(shown) :]:
        ax.set_axis_off()
    for ax, number in zip(axes[1:], shown, strict=False):
        image = _belief(ax, record, int(number))
        entropy = record.metrics["roi_entropy"][0, number].item()
        ax.set_title(f"{number} readings, H {entropy:.2f}")
        for n, (colour, _) in enumerate(uav_lines(record.path.shape[2])):
            flown, marker = record.path[0, :number, n].numpy(), _marker(record, int(number), n)
            ax.plot(flown[:, 0], flown[:, 1], color=colour, linewidth=1.2)
            ax.plot(flown[-1:, 0], flown[-1:, 1], marker, color=colour, markeredgecolor="w")
    figure.colorbar(image, ax=list(axes), label="P(region of interest)", shrink=0.7)
    figure.suptitle(f"{record.planner}: belief of mission {index}")
    figure.supxlabel("x [m]")
    figure.supylabel("y [m]")
    figure.savefig(path, dpi=110)


def mission_gif(record: FlightRecord, index: int, path: Path) -> None:
    """Animate one mission: flight paths over the terrain, next to the belief after each round.

    Args:
        record: flight record on the CPU that holds the maps of mission `index`.
        index: number of the mission in the record.
        path: GIF file to write.
    """
    record = record.alone(index)
    figure = Figure(figsize=(9.2, 4.9))
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.1, top=0.87, wspace=0.12)
    left, right = figure.subplots(1, 2)
    _terrain(left, record)
    image = _belief(right, record, 0)
    left.set(xlabel="x [m]", ylabel="y [m]", title="terrain and flight paths")
    right.set(xlabel="x [m]", title="belief")
    colours = [colour for colour, _ in uav_lines(record.path.shape[2])]
    outlines = [left.plot([], [], ":", color=c, linewidth=1.4)[0] for c in colours]
    paths = [left.plot([], [], color=c, linewidth=1.8)[0] for c in colours]
    ends = [
        ax.plot([], [], "o", color=c, markeredgecolor="k")[0]
        for ax in (left, right)
        for c in colours
    ]
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with writer.saving(figure, str(path), dpi=_GIF_DPI):
        for number in range(1, record.film.shape[1]):
            image.set_data(record.film[0, number].T.float().numpy())
            for n in range(len(colours)):
                flown = record.path[0, :number, n].numpy()
                paths[n].set_data(flown[:, 0], flown[:, 1])
                for end in (ends[n], ends[n + len(colours)]):
                    end.set_data(flown[-1:, 0], flown[-1:, 1])
                    end.set_marker(_marker(record, number, n))
                footprint = record.footprints[0, number - 1, n].tolist()
                outlines[n].set_data(*footprint_outline(footprint, record.config))
            entropy, f1 = (record.metrics[name][0, number].item() for name in ("roi_entropy", "f1"))
            figure.suptitle(
                f"{record.planner}, {number} readings – ROI entropy {entropy:.3f}, F1 {f1:.3f}"
            )
            last = number == record.film.shape[1] - 1
            for _ in range(_LAST_FRAME_REPEATS if last else 1):
                writer.grab_frame()


def _marker(record: FlightRecord, number: int, n: int) -> str:
    """Return the marker of a UAV after so many readings: a cross once it has stopped."""
    return "o" if number <= int(record.active[0, :, n].sum()) else "X"


def _terrain(axes: Axes, record: FlightRecord) -> None:
    draw_map(axes, record.truth[0], record.config, TERRAIN_COLOURS)
    draw_zones(axes, record)
    set_limits(axes, record.config)


def _belief(axes: Axes, record: FlightRecord, number: int) -> AxesImage:
    image = draw_map(axes, record.film[0, number], record.config, BELIEF_COLOURS)
    set_limits(axes, record.config)
    return image
