"""Pictures of running missions: `render_mode` "rgb_array" and "human"."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.evaluation.figures import BACKGROUND, ROI, uav_lines
from marl_framework.integrations.missions import Missions

RENDER_MODES = ("rgb_array", "human")
FRAMES_PER_SECOND = 2
_SIZE, _DPI = (7.2, 3.8), 100


def check_render_mode(mode: str | None) -> None:
    """Raise a ConfigError unless a mission can be shown so, here."""
    if mode is not None and mode not in RENDER_MODES:
        raise ConfigError(f"render_mode {mode!r}: use one of {', '.join(RENDER_MODES)} or None")
    if mode == "human":
        from matplotlib.backends.registry import BackendFilter, backend_registry

        windows = backend_registry.list_builtin(BackendFilter.INTERACTIVE)
        if matplotlib.get_backend().lower() not in windows:
            raise ConfigError(
                "render_mode 'human': matplotlib has no window here (backend "
                f"{matplotlib.get_backend()}); use 'rgb_array', or a display and MPLBACKEND"
            )


def frame(missions: Missions, index: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a picture of one mission, [H, W, 3] uint8: truth and belief, UAVs, footprints."""
    state, camera = missions.state[index : index + 1], missions.environment.camera
    config = missions.environment.config
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    _image(left, config, state.truth[0], ListedColormap([BACKGROUND, ROI]), "terrain")
    _image(right, config, state.global_belief[0], "cividis", "belief")
    at = missions.environment.lattice.metres(state.positions)[0].cpu().numpy()
    fp = camera.footprint(state.positions)
    res_x, res_y = config.cell_size
    edges = [edge[0].cpu().numpy() for edge in (fp.row0, fp.row1, fp.col0, fp.col1)]
    for n, (colour, _) in enumerate(uav_lines(len(at))):
        row0, row1, col0, col1 = (edge[n] for edge in edges)
        x = np.array([row0, row1, row1, row0, row0]) * res_x
        y = np.array([col0, col0, col1, col1, col0]) * res_y
        for axes in (left, right):
            axes.plot(x, y, ":", color=colour, linewidth=1.4)
            axes.plot(at[n, 0], at[n, 1], "o", color=colour, markeredgecolor="k")
    figure.suptitle(f"{int(state.t[0])} of {config.episode_length} moves")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


class Window:
    """Shows pictures on a screen, one after the other."""

    def __init__(self) -> None:
        self._image: Any = None

    def show(self, picture: np.ndarray[Any, Any]) -> None:
        """Show a picture [H, W, 3] and let the window draw it."""
        from matplotlib import pyplot  # a window is the only thing that needs it

        if self._image is None:
            height, width = picture.shape[:2]
            figure = pyplot.figure("missions", figsize=(width / _DPI, height / _DPI), dpi=_DPI)
            self._image = figure.figimage(picture)
        self._image.set_data(picture)
        pyplot.pause(1 / FRAMES_PER_SECOND)

    def close(self) -> None:
        """Close the window, where there is one."""
        if self._image is not None:
            from matplotlib import pyplot

            pyplot.close(self._image.figure)
            self._image = None


def _image(axes: Axes, config: Config, values: Tensor, colours: Any, title: str) -> None:
    (rows, cols), (res_x, res_y) = config.map_shape, config.cell_size
    axes.imshow(
        values.T.float().cpu().numpy(), origin="lower", extent=(0, rows * res_x, 0, cols * res_y),
        interpolation="nearest", cmap=colours, vmin=0, vmax=1,
    )  # fmt: skip
    pad = 0.03
    x, y = config.environment.x_dim, config.environment.y_dim
    axes.set(xlim=(-pad * x, (1 + pad) * x), ylim=(-pad * y, (1 + pad) * y))
    axes.set(title=title, xlabel="x [m]", aspect="equal")
