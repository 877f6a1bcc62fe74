"""Figures of flights and results. Lengths are in metres, x points right, y up.

Functions that draw a mission need a record on the CPU that holds the maps of mission `index`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.animation import PillowWriter
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Curve
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.evaluation.flight import FlightRecord, cells_in_view
from marl_framework.evaluation.outlines import zone_outlines
from marl_framework.evaluation.statistics import standard_error

Array = np.ndarray[Any, Any]
LineStyle = Literal["-", "--"]

# Okabe and Ito's palette, safe for colour blindness, with its yellow darkened.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8A7300")
_STYLES: tuple[LineStyle, ...] = ("-", "--")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_ROI, _BACKGROUND, _UNSEEN, _CLOSED = "#F7DDA0", "#EEF1F5", "#3A4048", "#C1272D"
TERRAIN_COLOURS = ListedColormap([_BACKGROUND, _ROI])
BELIEF_COLOURS = "cividis"
_UNSEEN_ALPHA, DPI = 0.38, 150
_SURFACE_CELLS = 80  # per side of the terrain in the 3-D plot
_PANELS = 10  # number of panels in a film strip, including the terrain
_GIF_DPI, _FRAMES_PER_SECOND, _LAST_FRAME_REPEATS = 72, 2, 4


def curves_figure(results: Mapping[str, Any], path: Path) -> None:
    """Draw the curves in `report.results` as a PNG: mean over missions ± one standard error."""
    figure = new_figure((11.0, 4.6))
    policies = results["policies"]
    blocks = None if results["blocks"] is None else torch.tensor(results["blocks"])
    panels = (("roi_entropy", "entropy of the ROI cells [bit]"), ("f1", "F1 of the ROI"))
    for axes, (metric, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for k, (name, metrics) in enumerate(policies.items()):
            values = torch.tensor(metrics[metric], dtype=torch.float64)
            draw_curve(axes, values, blocks, name, k)
        axes.set(xlabel="readings of each UAV", ylabel=label, ylim=(0, 1.02))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    missions = len(next(iter(policies.values()))["f1"])
    title = f"Mean over {missions} missions; bands: ± one standard error"
    figure.suptitle(title if missions > 1 else "One mission")
    _save_panels(figure, path)


def draw_curve(axes: Axes, values: Tensor, blocks: Tensor | None, name: str, number: int) -> None:
    """Draw the mean of `values` [missions, rounds] and a band of ± one standard error."""
    mean, error = values.mean(0).numpy(), standard_error(values, blocks)
    rounds = np.arange(len(mean))
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    style = _STYLES[number // len(_COLOURS) % len(_STYLES)]
    axes.plot(rounds, mean, color=colour, label=name, linestyle=style, marker=marker, markersize=4)
    if error is not None:
        ends = (mean - error.numpy(), mean + error.numpy())
        axes.fill_between(rounds, *ends, color=colour, alpha=0.25, linewidth=0)


def worlds_figure(worlds: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw ROI entropy and F1 of each policy in each world as a PNG, with 95 % intervals.

    `worlds`: see `report.overview`.
    """
    policies = list(worlds[0]["summary"])
    figure = new_figure((max(9.0, 1.5 + 0.35 * len(worlds) * len(policies)), 6.4))
    step = 0.8 / len(policies)
    panels = (("roi_entropy", "ROI entropy [bit]"), ("f1", "F1"))
    for axes, (metric, label) in zip(figure.subplots(2, 1, sharex=True), panels, strict=True):
        for k, name in enumerate(policies):
            rows = [world["summary"][name][metric] for world in worlds]
            x = np.arange(len(worlds)) + (k - (len(policies) - 1) / 2) * step
            means = np.array([row["iqm"] for row in rows])
            ends = np.array([row["iqm_interval"] or (row["iqm"],) * 2 for row in rows]).T
            errors = (means - ends[0], ends[1] - means)
            style = {"fmt": _MARKERS[k % len(_MARKERS)], "color": _COLOURS[k % len(_COLOURS)]}
            axes.errorbar(x, means, errors, markersize=5, capsize=2, label=name, **style)
        axes.set(ylabel=label, ylim=(0, 1.02))
        axes.set_xticks(np.arange(len(worlds)), [world["name"] for world in worlds], rotation=20)
        axes.grid(axis="y", alpha=0.3)
    figure.suptitle("Interquartile means over missions, with 95 % intervals")
    _save_panels(figure, path)


def _save_panels(figure: Figure, path: Path) -> None:
    """Save a figure with one legend for all panels, taken from the first panel."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=DPI)


def mission_figure(record: FlightRecord, index: int, path: Path) -> None:
    """Draw one mission as a PNG: terrain with observed cells, final maps, trajectories in 3-D.

    Raises IndexError if the record does not hold the maps of this mission.
    """
    if not 0 <= index < (kept := len(record.truth)):
        raise IndexError(f"mission {index}: the record has maps only of the first {kept} missions")
    record = record.alone(index)
    maps = {"Belief after the last reading": (record.belief, "")}
    if record.completed is not None:
        maps["Completed map"] = record.completed, "completed_"
    figure = new_figure((10.8 + 4.8 * len(maps), 6.0))
    grid = figure.add_gridspec(1, 2 + len(maps), width_ratios=(1, *(1 for _ in maps), 1.25))
    draw_terrain(figure.add_subplot(grid[0, 0]), record)
    for number, (title, (values, prefix)) in enumerate(maps.items(), 1):
        axes = figure.add_subplot(grid[0, number])
        image = draw_map(axes, values[0], record.config, BELIEF_COLOURS)
        entropy, f1 = (record.metrics[prefix + name][0, -1] for name in ("roi_entropy", "f1"))
        _label(axes, record, f"{title}\nROI entropy {entropy:.3f}, F1 {f1:.3f}")
    bar = axes.inset_axes((1.03, 0, 0.045, 1))
    figure.colorbar(image, cax=bar, label="P(region of interest)")
    _draw_3d(figure.add_subplot(grid[0, len(maps) + 1], projection="3d"), record)
    moves = record.config.missions.episode_length
    figure.suptitle(f"{record.planner}: mission {index}, after {moves} moves")
    handles: list[Artist] = [
        Line2D([], [], color=colour, linestyle=style, linewidth=2, label=f"UAV {n + 1}")
        for n, (colour, style) in enumerate(uav_lines(record.path.shape[2]))
    ]
    ends: dict[str, Any] = {"color": "white", "markeredgecolor": "k", "linestyle": ""}
    handles += [
        Line2D([], [], marker="o", label="start", **ends),
        Line2D([], [], marker="X", label="end", **ends),
        Patch(facecolor=_ROI, edgecolor="grey", label="region of interest (ROI)"),
        Patch(facecolor=_BACKGROUND, edgecolor="grey", label="other ground"),
        Patch(facecolor=_UNSEEN, alpha=_UNSEEN_ALPHA, label="never seen"),
        Line2D([], [], color="grey", linewidth=1.2, linestyle=":", label="last footprint"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=10, frameon=False)
    figure.savefig(path, dpi=DPI)


def draw_terrain(axes: Axes, record: FlightRecord) -> None:
    """Draw the ground truth, unseen cells, zones, last footprints and paths of one mission."""
    truth, footprints = record.truth[0], record.footprints[0]
    rows, cols = truth.shape
    image = draw_map(axes, truth, record.config, TERRAIN_COLOURS)
    unseen = ~cells_in_view(footprints.flatten(0, 1), (rows, cols))
    if record.inside is not None:
        unseen &= record.inside[0]
    overlay = np.zeros((cols, rows, 4))
    overlay[unseen.T.numpy()] = to_rgba(_UNSEEN, _UNSEEN_ALPHA)
    axes.imshow(overlay, origin="lower", extent=image.get_extent(), interpolation="nearest")
    lines = uav_lines(footprints.shape[1])
    for footprint, (colour, _) in zip(footprints[-1].tolist(), lines, strict=True):
        outline = footprint_outline(footprint, record.config)
        axes.plot(*outline, color=colour, linewidth=1.2, linestyle=":")
    draw_zones(axes, record)
    flown = record.path[0].numpy()
    widths = np.linspace(3.6, 1.4, len(lines))  # different widths show overlapping paths
    for n, (colour, style) in enumerate(lines):
        x, y = flown[:, n, 0], flown[:, n, 1]
        axes.plot(x, y, color=colour, linestyle=style, linewidth=widths[n])
        axes.plot(x[0], y[0], "o", color=colour, markeredgecolor="k", markersize=8, zorder=4)
        axes.plot(x[-1], y[-1], "X", color=colour, markeredgecolor="k", markersize=9, zorder=4)
    _label(axes, record, "Terrain and flight paths")


def _draw_3d(axes: Any, record: FlightRecord) -> None:
    truth, altitudes = record.truth[0].numpy(), record.config.geometry.altitudes
    coarse = truth[tuple(slice(None, None, -(-cells // _SURFACE_CELLS)) for cells in truth.shape)]
    sides = record.config.environment.x_dim, record.config.environment.y_dim
    edges = (np.linspace(0, side, n + 1) for side, n in zip(sides, coarse.shape, strict=True))
    grid_x, grid_y = np.meshgrid(*edges, indexing="ij")
    axes.plot_surface(
        grid_x, grid_y, np.zeros_like(grid_x), rstride=1, cstride=1, shade=False, linewidth=0,
        facecolors=np.where(coarse[..., None], to_rgba(_ROI), to_rgba(_BACKGROUND)),
        antialiased=False, zorder=0,
    )  # fmt: skip
    axes.computed_zorder = False
    flown = record.path[0].numpy()
    for n, (colour, style) in enumerate(uav_lines(flown.shape[1])):
        points = flown[:, n].T
        shadow = (points[0], points[1], np.zeros_like(points[0]))
        axes.plot(*shadow, color=colour, linewidth=0.8, alpha=0.5, zorder=1)
        axes.plot(*points, color=colour, linestyle=style, linewidth=1.8, zorder=3)
        common = {"color": colour, "edgecolor": "k", "zorder": 4, "depthshade": False}
        axes.scatter(*points[:, :1], marker="o", s=28, **common)
        axes.scatter(*points[:, -1:], marker="X", s=40, **common)
    top = max(altitudes) * 1.05
    axes.set(xlim=(0, sides[0]), ylim=(0, sides[1]), zlim=(0, top))
    axes.set_xlabel("x [m]", labelpad=8)
    axes.set_ylabel("y [m]", labelpad=8)
    axes.set(zlabel="altitude [m]", zticks=[0.0, *altitudes])
    for axis, side in zip((axes.xaxis, axes.yaxis), sides, strict=True):
        axis.set_major_locator(MaxNLocator(max(2, round(5 * side / max(sides)))))
    # x and y to scale; z is stretched over large areas so that the altitudes stay apart.
    axes.set_box_aspect((*sides, max(top, 0.4 * max(sides))), zoom=0.85)
    axes.view_init(elev=28, azim=-58)
    axes.set_title("Flight paths in 3-D", y=0.985)


def _label(axes: Axes, record: FlightRecord, title: str) -> None:
    x_dim, y_dim = record.config.environment.x_dim, record.config.environment.y_dim
    pad = 0.02 * max(x_dim, y_dim)  # for markers at the border
    axes.set(xlim=(-pad, x_dim + pad), ylim=(-pad, y_dim + pad), aspect="equal")
    axes.set(xlabel="x [m]", ylabel="y [m]", title=title)


def film_strip(record: FlightRecord, index: int, path: Path) -> None:
    """Draw one mission as a PNG: ground truth and the global belief after selected rounds."""
    record = record.alone(index)
    rounds = record.film.shape[1] - 1
    shown = np.unique(np.linspace(0, rounds, _PANELS - 1).round().astype(int))
    figure = Figure(figsize=(13.5, 6.2), layout="constrained")
    axes = figure.subplots(2, _PANELS // 2, sharex=True, sharey=True).flatten()
    _film_map(axes[0], record, record.truth[0], TERRAIN_COLOURS)
    draw_zones(axes[0], record)
    axes[0].set_title("truth")
    for ax in axes[1 + len(shown) :]:
        ax.set_axis_off()
    for ax, number in zip(axes[1:], shown.tolist(), strict=False):
        image = _film_map(ax, record, record.film[0, number], BELIEF_COLOURS)
        entropy = record.metrics["roi_entropy"][0, number].item()
        ax.set_title(f"{number} readings, H {entropy:.2f}")
        for n, (colour, _) in enumerate(uav_lines(record.path.shape[2])):
            flown, marker = record.path[0, :number, n].numpy(), _uav_marker(record, number, n)
            ax.plot(flown[:, 0], flown[:, 1], color=colour, linewidth=1.2)
            ax.plot(flown[-1:, 0], flown[-1:, 1], marker, color=colour, markeredgecolor="w")
    figure.colorbar(image, ax=list(axes), label="P(region of interest)", shrink=0.7)
    figure.suptitle(f"{record.planner}: belief of mission {index}")
    figure.supxlabel("x [m]")
    figure.supylabel("y [m]")
    figure.savefig(path, dpi=110)


def mission_gif(record: FlightRecord, index: int, path: Path) -> None:
    """Animate one mission: flight paths over the terrain, next to the belief after each round."""
    record = record.alone(index)
    figure = Figure(figsize=(9.2, 4.9))
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.1, top=0.87, wspace=0.12)
    left, right = figure.subplots(1, 2)
    _film_map(left, record, record.truth[0], TERRAIN_COLOURS)
    draw_zones(left, record)
    image = _film_map(right, record, record.film[0, 0], BELIEF_COLOURS)
    left.set(xlabel="x [m]", ylabel="y [m]", title="terrain and flight paths")
    right.set(xlabel="x [m]", title="belief")
    colours = [colour for colour, _ in uav_lines(record.path.shape[2])]
    outlines = [left.plot([], [], ":", color=c, linewidth=1.4)[0] for c in colours]
    paths = [left.plot([], [], color=c, linewidth=1.8)[0] for c in colours]
    ends = [
        [ax.plot([], [], "o", color=c, markeredgecolor="k")[0] for ax in (left, right)]
        for c in colours
    ]
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    rounds = record.film.shape[1] - 1
    with writer.saving(figure, str(path), dpi=_GIF_DPI):
        for number in range(1, rounds + 1):
            image.set_data(record.film[0, number].T.float().numpy())
            for n in range(len(colours)):
                flown = record.path[0, :number, n].numpy()
                paths[n].set_data(flown[:, 0], flown[:, 1])
                for end in ends[n]:
                    end.set_data(flown[-1:, 0], flown[-1:, 1])
                    end.set_marker(_uav_marker(record, number, n))
                footprint = record.footprints[0, number - 1, n].tolist()
                outlines[n].set_data(*footprint_outline(footprint, record.config))
            entropy, f1 = (record.metrics[name][0, number].item() for name in ("roi_entropy", "f1"))
            figure.suptitle(
                f"{record.planner}, {number} readings – ROI entropy {entropy:.3f}, F1 {f1:.3f}"
            )
            for _ in range(_LAST_FRAME_REPEATS if number == rounds else 1):
                writer.grab_frame()


def _uav_marker(record: FlightRecord, number: int, n: int) -> str:
    return "o" if number <= int(record.active[0, :, n].sum()) else "X"


def _film_map(axes: Axes, record: FlightRecord, values: Tensor, colours: Any) -> AxesImage:
    image = draw_map(axes, values, record.config, colours)
    set_limits(axes, record.config)
    return image


def new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of the given size [inch], with a layout that avoids overlaps."""
    figure = Figure(figsize=size)
    figure.set_layout_engine(
        "constrained", w_pad=0.12, h_pad=0.08, wspace=0.02, rect=(0, 0, 0.985, 1)
    )
    return figure


def uav_lines(number: int) -> list[tuple[str, LineStyle]]:
    """Return the colour and line style of each UAV."""
    return [(_COLOURS[n % len(_COLOURS)], _STYLES[n // len(_COLOURS) % 2]) for n in range(number)]


def draw_map(axes: Axes, values: Tensor, config: Config, colours: str | Colormap) -> AxesImage:
    """Draw a map [R, C] with values in 0 … 1; the axes are in metres."""
    (rows, cols), (res_x, res_y) = config.geometry.map_shape, config.geometry.cell_size
    return axes.imshow(
        values.T.float().cpu().numpy(), origin="lower", interpolation="nearest",
        extent=(0, rows * res_x, 0, cols * res_y), cmap=colours, vmin=0, vmax=1,
    )  # fmt: skip


def footprint_outline(footprint: Sequence[int], config: Config) -> tuple[Array, Array]:
    """Return x and y [m] of the closed outline of a footprint (row0, row1, col0, col1).

    Both are empty for the empty footprint of a UAV that has stopped.
    """
    row0, row1, col0, col1 = footprint
    corners = [(row0, col0), (row1, col0), (row1, col1), (row0, col1), (row0, col0)]
    x, y = np.array(corners if row1 > row0 else np.empty((0, 2))).T
    return x * config.geometry.cell_size[0], y * config.geometry.cell_size[1]


def set_limits(axes: Axes, config: Config) -> None:
    """Set axis limits to the mission area, with a margin for UAVs at the border."""
    x, y = config.environment.x_dim, config.environment.y_dim
    axes.set(xlim=(-0.03 * x, 1.03 * x), ylim=(-0.03 * y, 1.03 * y))


def draw_zones(axes: Axes, record: FlightRecord) -> None:
    """Draw zones, obstacles and the area outside the field as hatched polygons."""
    for outline in zone_outlines(record):
        curve = Curve.make_compound_path(*(Curve(ring, closed=True) for ring in outline.rings))
        axes.add_patch(
            PathPatch(curve, facecolor="none", edgecolor=_CLOSED, hatch="////", linewidth=1.2)
        )
