"""Draw the maps of actor and critic for one UAV of one mission.

    python -m benchmarks.figures.observations OUT_DIR [--config FILE]

writes one PNG per map, `mission.png` (the mission) and `area.png`, and prints the error of
`kornia.geometry.transform.resize(interpolation="area")` against exact area means. The figures of
docs/observations.md come from `python -m benchmarks.figures.observations docs/observations`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from kornia.geometry.transform import resize
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.helpers.command_line import answer
from benchmarks.reference import plain_mission
from marl_framework.command_line import Parser
from marl_framework.config.learning import ObservationConfig
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.evaluation.figures import draw_map, footprint_outline, uav_lines
from marl_framework.evaluation.flight import cells_in_view
from marl_framework.kernels.cells import area_pool, area_weights
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import RandomPlanner

MISSIONS, MISSION, UAV, MOVES = 16, 12, 1, 9  # the drawn mission is one of a batch
_DPI = 100

Array = NDArray[Any]


_ADDED = ("", "global_", "centred_")
_DRAWN = ObservationConfig(
    **{f"{prefix}uncertainty": True for prefix in _ADDED},
    **{f"centred_{name}": True for name in ("entropy", "probability", "footprint")},
)
"""Channels of the paper, and maps that are the same in all missions."""


@dataclass(frozen=True)
class Scene:
    """One UAV of one mission, on the host."""

    config: Config
    state: MissionState
    """State of one mission, E = 1."""
    uav: int
    observation: dict[str, Array]
    """Channels of actor and critic of the UAV, [X, Y] each."""
    footprints: Tensor
    """Row0, row1, col0 and col1 of each UAV, [N, 4]."""
    square: Array
    """Likelihoods of the UAV's reading in its unclipped footprint."""
    flown: Array
    """Lattice positions after each move, [moves + 1, N, 3]."""

    @property
    def positions(self) -> Array:
        """Current lattice positions, [N, 3]."""
        return self.flown[-1]


@torch.no_grad()
def fly(config: Config) -> Scene:
    """Fly the drawn mission, which is always the same."""
    config = config.model_copy(update={"observation": _DRAWN})
    env = MissionEnvironment(config, MISSIONS, "cpu", "test")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner, uav = RandomPlanner(env.lattice), min(UAV, env.n_agents - 1)
    state = env.reset()
    flown = [state.positions[MISSION].clone()]
    for _ in range(min(MOVES, config.missions.episode_length - 1)):
        actions = planner.act(state, env.generator).actions
        env.step(state, actions)
        flown.append(state.positions[MISSION].clone())
    actions = planner.act(state, env.generator).actions
    seen = builder.critic(state, actions, builder.actor(state))[MISSION, uav]
    one = state[MISSION : MISSION + 1]
    return Scene(
        config=config,
        state=one,
        uav=uav,
        observation=dict(zip(builder.critic_channels, seen.numpy(), strict=True)),
        footprints=env.camera.boxes(one.positions)[0, :, :4],
        square=_square(config, env, one, uav),
        flown=torch.stack(flown).numpy(),
    )


def _square(config: Config, env: MissionEnvironment, state: MissionState, uav: int) -> Array:
    """Return the likelihoods of the UAV's reading in its whole square, 0.5 beyond the map."""
    window = env.camera.footprint(state.positions)
    row, col = int(window.window_row[0, uav]), int(window.window_col[0, uav])
    x, y, z = state.positions[0, uav].tolist()
    seen = plain_mission.footprint(plain_mission.Geometry.of(config), (x, y, z))
    likelihood = env.camera.likelihood(state.readings, state.positions)[0, uav].numpy()
    cells = likelihood[seen.row0 - row : seen.row1 - row, seen.col0 - col : seen.col1 - col]
    return plain_mission.square(seen, cells)


# Drawing ----------------------------------------------------------------------------------


def draw(scene: Scene, folder: Path) -> list[Path]:
    """Draw the mission and all maps; return the files."""
    views: dict[str, Callable[[Axes, Scene], object]] = {
        "entropy": _draw_own_belief,
        "probability": _draw_own_belief,
        "local_entropy": _draw_square,
        "footprint": _draw_footprints,
        "uncertainty": _draw_own_belief,
        "global_entropy": _draw_global_belief,
        "global_probability": _draw_global_belief,
        "global_footprint": _draw_all_footprints,
        "global_uncertainty": _draw_global_belief,
    }
    paths = [folder / "mission.png"]
    figure = _figure(3)
    axes = figure.subplots(1, 3)
    _draw_terrain(axes[0], scene)
    _draw_own_belief(axes[1], scene)
    _bar(figure, _draw_global_belief(axes[2], scene), axes[2])
    figure.savefig(paths[0], dpi=_DPI)
    centred = [name for name in scene.observation if name.startswith("centred_")]
    for name in scene.observation:
        if name in centred:
            continue
        paths.append(folder / f"{name}.png")
        view = views.get(name)
        figure = _figure(2 if view else 1)
        panels = figure.subplots(1, 2 if view else 1, squeeze=False)[0]
        if view:
            view(panels[0], scene)
        _bar(figure, _draw_map(panels[-1], scene, name), panels[-1])
        figure.savefig(paths[-1], dpi=_DPI)
    paths.append(folder / "centred.png")
    figure = _figure(len(centred))
    axes = figure.subplots(1, len(centred))
    for ax, name in zip(axes, centred, strict=True):
        image = _draw_map(ax, scene, name)
    _bar(figure, image, axes[-1])
    figure.savefig(paths[-1], dpi=_DPI)
    return paths


def _figure(panels: int) -> Figure:
    return Figure(figsize=(3.4 * panels + 0.6, 3.5), layout="constrained")


def _bar(figure: Figure, image: Any, axes: Axes) -> None:
    figure.colorbar(image, cax=axes.inset_axes((1.03, 0, 0.05, 1)))


def _draw_map(axes: Axes, scene: Scene, name: str) -> Any:
    """Draw one channel, x to the right, y up, with the UAVs if it shows positions."""
    values = scene.observation[name]
    x, y = values.shape
    relative = name == "position" or name.startswith("centred_")
    left, bottom = (-(x // 2), -(y // 2)) if relative else (0, 0)
    extent = (left - 0.5, left + x - 0.5, bottom - 0.5, bottom + y - 0.5)
    image = axes.imshow(
        values.T, origin="lower", extent=extent, cmap="cividis", vmin=0, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    place = scene.positions[:, :2] - (scene.positions[scene.uav, :2] if relative else 0)
    if name == "local_entropy":
        axes.set(xlabel="part along x", ylabel="part along y", title=name)
    else:
        for i, (px, py) in enumerate(place):
            if extent[0] < px < extent[1] and extent[2] < py < extent[3]:
                _mark(axes, scene, i, px, py)
        offset = " − own" if relative else ""
        axes.set(xlabel=f"lattice x{offset}", ylabel=f"lattice y{offset}", title=name)
    return image


def _mark(axes: Axes, scene: Scene, i: int, x: float, y: float) -> None:
    """Mark UAV i: a disc if the drawn UAV hears it, else a ring; the UAV itself is a star."""
    heard, colour = bool(scene.state.heard[0, scene.uav, i]), _colour(i)
    marker, size = ("*", 13) if i == scene.uav else ("o", 8)
    axes.plot(
        x, y, marker=marker, markersize=size, linestyle="",
        markerfacecolor=colour if heard else "none", markeredgecolor="w" if heard else colour,
        markeredgewidth=1 if heard else 2, clip_on=False,
    )  # fmt: skip


def _colour(i: int) -> str:
    return uav_lines(i + 1)[i][0]


def _draw_cells(axes: Axes, scene: Scene, values: Tensor, title: str, cmap: str = "cividis") -> Any:
    """Draw a map at full resolution, with footprints and UAVs; axes in metres."""
    image = draw_map(axes, values, scene.config, cmap)
    spacing = scene.config.experiment.constraints.spacing
    for i, box in enumerate(scene.footprints.tolist()):
        axes.plot(*footprint_outline(box, scene.config), color=_colour(i), linewidth=1.5)
        _mark(axes, scene, i, *(scene.positions[i, :2] * spacing))
    left, right, bottom, top = image.get_extent()
    axes.set(xlabel="x [m]", ylabel="y [m]", title=title, xlim=(left, right), ylim=(bottom, top))
    return image


def _draw_terrain(axes: Axes, scene: Scene) -> None:
    _draw_cells(axes, scene, 0.35 + 0.5 * scene.state.truth[0], "terrain and flight", "gray")
    spacing = scene.config.experiment.constraints.spacing
    for i in range(len(scene.positions)):
        axes.plot(*(scene.flown[:, i, :2].T * spacing), color=_colour(i), linewidth=1.5)


def _draw_own_belief(axes: Axes, scene: Scene) -> Any:
    return _draw_cells(axes, scene, scene.state.beliefs[0, scene.uav], "own belief")


def _draw_global_belief(axes: Axes, scene: Scene) -> Any:
    return _draw_cells(axes, scene, scene.state.global_belief[0], "global belief")


def _draw_square(axes: Axes, scene: Scene) -> Any:
    image = axes.imshow(
        scene.square.T, origin="lower", cmap="cividis", vmin=0, vmax=1, interpolation="nearest"
    )
    axes.set(xlabel="cell along x", ylabel="cell along y", title="own reading")
    return image


def _draw_footprints(axes: Axes, scene: Scene) -> Any:
    masks = cells_in_view(scene.footprints.unsqueeze(1), scene.config.geometry.map_shape)
    heard = scene.state.heard[0, scene.uav].clone()
    heard[scene.uav] = False
    values = torch.full(masks.shape[1:], 0.5)
    values[masks[heard].any(0)] = 0
    values[masks[scene.uav]] = 1
    return _draw_cells(axes, scene, values, "who looks where")


def _draw_all_footprints(axes: Axes, scene: Scene) -> Any:
    seen = cells_in_view(scene.footprints, scene.config.geometry.map_shape)
    return _draw_cells(axes, scene, torch.where(seen, 1.0, 0.5), "all footprints")


# Area means -------------------------------------------------------------------------------


def area_errors(scene: Scene, folder: Path) -> tuple[Path, str]:
    """Draw and print the error of kornia's area resize against exact area means.

    Two maps: the own belief, and a part of it with as many cells as the camera has pixels.
    """
    lattice = scene.config.geometry.lattice_shape[:2]
    belief = scene.state.beliefs[0, scene.uav]
    pixel = scene.config.sensor.pixel
    row, col = (int(v) for v in scene.footprints[scene.uav, [0, 2]])
    row = min(row, belief.shape[0] - pixel.number_x)
    col = min(col, belief.shape[1] - pixel.number_y)
    part = belief[row : row + pixel.number_x, col : col + pixel.number_y]
    figure = _figure(2)
    axes = figure.subplots(1, 2)
    lines = ["largest difference from OpenCV's INTER_AREA", "cells  lattice  kornia resize  here"]
    for ax, cells in zip(axes, (belief, part), strict=True):
        exact = cv2.resize(cells.numpy(), lattice[::-1], interpolation=cv2.INTER_AREA)
        kornia = resize(cells[None, None], lattice, interpolation="area")[0, 0].numpy()
        weights = [area_weights(n, m).float() for n, m in zip(cells.shape, lattice, strict=True)]
        ours = area_pool(cells, *weights).numpy()
        difference = np.abs(kornia - exact)
        image = ax.imshow(difference.T, origin="lower", cmap="magma", interpolation="nearest")
        _bar(figure, image, ax)
        ax.set(title=f"error, {cells.shape[0]} → {lattice[0]} cells", xlabel="x", ylabel="y")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        lines.append(
            f"{cells.shape[0]:5}  {lattice[0]:7}  {difference.max():13.1e}  "
            f"{np.abs(ours - exact).max():.1e}"
        )
    path = folder / "area.png"
    figure.savefig(path, dpi=_DPI)
    return path, "\n".join(lines)


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all figures into a folder; return the exit code."""
    parser = Parser(prog="python -m benchmarks.figures.observations")
    parser.description = "Draw the maps of actor and critic."
    parser.add_argument("folder", type=Path, metavar="OUT_DIR", help="where the PNGs go")
    parser.add_argument("--config", default="params.yaml", metavar="FILE", help="params file")
    options = parser.parse_args(arguments)
    return answer(options.folder, lambda: _drawn(options.config, options.folder))


def _drawn(config: str, folder: Path) -> str:
    """Write all figures; return their names and sizes, and the errors of area means."""
    scene = fly(load_config(config))
    folder.mkdir(parents=True, exist_ok=True)
    paths = draw(scene, folder)
    path, table = area_errors(scene, folder)
    sizes = [f"{path}: {path.stat().st_size / 1024:.0f} kB" for path in [*paths, path]]
    return "\n".join([*sizes, table])


if __name__ == "__main__":
    sys.exit(main())
