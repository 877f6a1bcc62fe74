"""Missions in NumPy: arrays, and images for `render_mode` "rgb_array" and "human"."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.evaluation import figures
from marl_framework.integrations.missions import Missions

METADATA: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 2}
_SIZE, _DPI = (7.2, 3.8), 100

Array = np.ndarray[Any, Any]


def to_numpy(values: Tensor) -> Array:
    """Return values as an array on the host."""
    return values.cpu().numpy()


def frame(missions: Missions, index: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an image of one mission, [H, W, 3] uint8: ground truth and belief with the UAVs."""
    state, camera = missions.state[index : index + 1], missions.environment.camera
    config = missions.environment.config
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    figures.draw_map(left, state.truth[0], config, figures.TERRAIN_COLOURS)
    figures.draw_map(right, state.global_belief[0], config, figures.BELIEF_COLOURS)
    for axes, title in ((left, "terrain"), (right, "belief")):
        figures.set_limits(axes, config)
        axes.set(title=title, xlabel="x [m]", aspect="equal")
    positions = missions.environment.lattice.metres(state.positions)[0].tolist()
    footprints = camera.boxes(state.positions)[0, :, :4].tolist()
    has_reading = state.readings[0].flatten(1).any(1).tolist()  # False for UAVs that have stopped
    for n, (colour, _) in enumerate(figures.uav_lines(int(state.team_size[0]))):
        for axes in (left, right):
            if has_reading[n]:
                outline = figures.footprint_outline(footprints[n], config)
                axes.plot(*outline, ":", color=colour, linewidth=1.4)
            axes.plot(*positions[n][:2], "o", color=colour, markeredgecolor="k")
    figure.suptitle(f"{int(state.t[0])} of {int(state.budget[0]) + 1} moves")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


class Viewer:
    """Renders missions in mode "rgb_array", "human" (a window with the first mission) or None.

    Raises ConfigError if the mode is unknown, or "human" without an interactive backend.
    """

    def __init__(self, mode: str | None) -> None:
        if mode not in (None, "rgb_array", "human"):
            raise ConfigError(f"render_mode {mode!r}: use rgb_array, human or None")
        if mode == "human":
            from matplotlib.backends.registry import BackendFilter, backend_registry

            backend = matplotlib.get_backend()
            if backend.lower() not in backend_registry.list_builtin(BackendFilter.INTERACTIVE):
                raise ConfigError(
                    f"render_mode 'human': matplotlib's backend {backend} cannot open a window; "
                    "use 'rgb_array', or a display and an interactive MPLBACKEND"
                )
        self._mode = mode
        self._image: Any = None

    def render(self, missions: Missions) -> tuple[Array, ...] | None:
        """Return images of all missions ("rgb_array") or show the first mission ("human")."""
        if self._mode == "rgb_array":
            return tuple(frame(missions, e) for e in range(missions.environment.num_envs))
        self.refresh(missions)
        return None

    def refresh(self, missions: Missions) -> None:
        """Show the first mission in mode "human"; call this method after every step."""
        if self._mode == "human":
            self.show(frame(missions, 0))

    def show(self, image: Array) -> None:
        """Show an image [H, W, 3], in a new window on the first call."""
        from matplotlib import pyplot  # imported only if a window opens

        if self._image is None:
            height, width = image.shape[:2]
            figure = pyplot.figure("missions", figsize=(width / _DPI, height / _DPI), dpi=_DPI)
            self._image = figure.figimage(image)
        self._image.set_data(image)
        pyplot.pause(1 / METADATA["render_fps"])

    def close(self) -> None:
        """Close the window if it is open."""
        if self._image is not None:
            from matplotlib import pyplot

            pyplot.close(self._image.figure)
            self._image = None
