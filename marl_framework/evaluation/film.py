"""How a mission's belief grows: a strip of maps, and a GIF. Lengths are in metres."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from marl_framework.evaluation.figures import BACKGROUND, ROI, area, extent, uav_lines
from marl_framework.evaluation.flight import FlightRecord

_PANELS = 10  # of a strip, the terrain among them
_GIF_DPI, _FRAMES_PER_SECOND, _FREEZE = 72, 2, 4  # the last frame stays for 4 frames


def film_strip(record: FlightRecord, index: int, path: Path) -> None:
    """Draw the truth and the global belief of one mission after chosen rounds, with the UAVs.

    Args:
        record: on the host, with the maps of mission `index` kept.
        index: number of the mission in the record.
        path: of the PNG.
    """
    rounds = record.film.shape[1] - 1
    shown = np.unique(np.linspace(0, rounds, _PANELS - 1).round().astype(int))
    figure = Figure(figsize=(13.5, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, _PANELS // 2, sharex=True, sharey=True).flatten()
    _terrain(axes[0], record, index)
    axes[0].set_title("truth")
    for ax in axes[1 + len(shown) :]:
        ax.set_axis_off()
    for ax, number in zip(axes[1:], shown, strict=False):
        image = _belief(ax, record, index, int(number))
        entropy = record.metrics["roi_entropy"][index, number].item()
        ax.set_title(f"{number} readings, H {entropy:.2f}")
        for n, (colour, _) in enumerate(uav_lines(record.path.shape[2])):
            flown = record.path[index, :number, n].numpy()
            ax.plot(flown[:, 0], flown[:, 1], color=colour, linewidth=1.2)
            ax.plot(flown[-1:, 0], flown[-1:, 1], "o", color=colour, markeredgecolor="w")
    figure.colorbar(image, ax=list(axes), label="P(region of interest)", shrink=0.7)
    figure.suptitle(f"{record.planner}: belief of mission {index}")
    figure.supxlabel("x [m]")
    figure.supylabel("y [m]")
    figure.savefig(path, dpi=110)


def mission_gif(record: FlightRecord, index: int, path: Path) -> None:
    """Draw one mission round by round: flight paths over the terrain beside the belief.

    Args:
        record: on the host, with the maps of mission `index` kept.
        index: number of the mission in the record.
        path: of the GIF.
    """
    figure = Figure(figsize=(9.2, 4.9))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.1, top=0.87, wspace=0.12)
    left, right = figure.subplots(1, 2)
    _terrain(left, record, index)
    image = _belief(right, record, index, 0)
    left.set(xlabel="x [m]", ylabel="y [m]", title="terrain and flight paths")
    right.set(xlabel="x [m]", title="belief")
    colours = [colour for colour, _ in uav_lines(record.path.shape[2])]
    views = [left.plot([], [], ":", color=c, linewidth=1.4)[0] for c in colours]
    paths = [left.plot([], [], color=c, linewidth=1.8)[0] for c in colours]
    ends = [
        ax.plot([], [], "o", color=c, markeredgecolor="k")[0]
        for ax in (left, right)
        for c in colours
    ]
    res_x, res_y = record.config.cell_size
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with writer.saving(figure, str(path), dpi=_GIF_DPI):
        for number in range(1, record.film.shape[1]):
            image.set_data(record.film[index, number].T.float().numpy())
            for n in range(len(colours)):
                flown = record.path[index, :number, n].numpy()
                paths[n].set_data(flown[:, 0], flown[:, 1])
                for end in (ends[n], ends[n + len(colours)]):
                    end.set_data(flown[-1:, 0], flown[-1:, 1])
                row0, row1, col0, col1 = record.footprints[index, number - 1, n].tolist()
                views[n].set_data(
                    np.array([row0, row1, row1, row0, row0]) * res_x,
                    np.array([col0, col0, col1, col1, col0]) * res_y,
                )
            entropy, f1 = (
                record.metrics[name][index, number].item() for name in ("roi_entropy", "f1")
            )
            figure.suptitle(
                f"{record.planner}, {number} readings – ROI entropy {entropy:.3f}, F1 {f1:.3f}"
            )
            last = number == record.film.shape[1] - 1
            for _ in range(_FREEZE if last else 1):
                writer.grab_frame()


def _frame(axes: Axes, record: FlightRecord) -> None:
    """Leave room for UAVs on the edge of the area."""
    x, y = area(record)
    axes.set(xlim=(-0.03 * x, 1.03 * x), ylim=(-0.03 * y, 1.03 * y))


def _terrain(axes: Axes, record: FlightRecord, index: int) -> None:
    axes.imshow(
        record.truth[index].T.numpy(), origin="lower", extent=extent(record), vmin=0, vmax=1,
        interpolation="nearest", cmap=ListedColormap([BACKGROUND, ROI]),
    )  # fmt: skip
    _frame(axes, record)


def _belief(axes: Axes, record: FlightRecord, index: int, number: int) -> AxesImage:
    image = axes.imshow(
        record.film[index, number].T.float().numpy(), origin="lower", extent=extent(record),
        interpolation="nearest", cmap="cividis", vmin=0, vmax=1,
    )  # fmt: skip
    _frame(axes, record)
    return image
