"""Fly paths of SGP-Tools: `--policies marl_framework.integrations.sgptools.SGPPlanner`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from marl_framework.integrations import missing_extra
from marl_framework.integrations.paths import PathPlanner, Points
from marl_framework.mission.environment import MissionEnvironment

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reports its build otherwise
try:
    from sgptools.core.transformations import IPPTransform, Transform
    from sgptools.methods import ContinuousSGP
    from sgptools.utils.gpflow import get_model_params
    from sgptools.utils.misc import get_inducing_pts
    from sgptools.utils.tsp import run_tsp

    import tensorflow as tf  # isort: skip  # after sgptools, whose absence is to be named
except ModuleNotFoundError as error:
    raise missing_extra("sgptools", error) from error

_RAYS = 3  # points of a footprint along each side
_PENALTY = 250.0  # weight of the length in excess of the budget
_TOUR_SECONDS = 5  # limit of the tour's solver, which usually ends at once


class SGPPlanner(PathPlanner):
    """Plans the team's paths with SGP-Tools' `ContinuousSGP` before the first move.

    A Gaussian process with an RBF kernel, fitted to one training map, models the ground. Each UAV
    has one waypoint per move, with a square footprint of `_RAYS`² points. Waypoints are optimised
    together, from a tour through the area that SGP-Tools' `run_tsp` divides among the UAVs, under
    a limit on each path's length along x and y. See Jakkala and Akella, 2024, Multi-Robot
    Informative Path Planning from Regression with Sparse Gaussian Processes.
    """

    name = "sgptools"

    def __init__(self, environment: MissionEnvironment) -> None:
        super().__init__(environment)
        axes = [np.linspace(0, size - 1, 2 * size - 1) for size in environment.lattice.shape[:2]]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
        config = environment.config
        view = config.sensor.field_of_view
        altitude = config.geometry.altitudes[self._level] / config.experiment.constraints.spacing
        angles = np.radians([view.angle_x, view.angle_y])
        self._footprint = _Footprint(2 * altitude * np.tan(angles / 2))
        training = MissionEnvironment(config, 1, "cpu", "training")
        truth = training.reset(training.draw_reset()).truth[0].numpy()
        rows, cols = (
            np.linspace(0, cells - 1, len(axis)).round().astype(int)
            for cells, axis in zip(truth.shape, axes, strict=True)
        )
        values = truth[np.ix_(rows, cols)].reshape(-1, 1) * 2.0 - 1.0
        # As many points as footprints have would be taken for footprints.
        last = len(points) - (len(points) % _RAYS**2 == 0)
        self._points = points[:last]
        _, noise, self._kernel = get_model_params(self._points, values[:last], verbose=False)
        self._noise = float(noise)

    def plan(self, starts: Points, moves: int, seed: int) -> Points:
        """Return waypoints [N, `moves` + 1, 2]; see `PathPlanner.plan`."""
        n = len(starts)
        places = get_inducing_pts(self._points, n * max(1, moves // 2), seed=seed)
        tours, _ = run_tsp(
            places,
            num_vehicles=n,
            max_dist=2.0 * moves,
            resample=moves + 1,
            start_nodes=starts,
            time_limit=_TOUR_SECONDS,
        )
        transform = IPPTransform(
            num_robots=n,
            distance_budget=float(moves),
            constraint_weight=_PENALTY,
            Xu_fixed=starts[:, None],
            sensor_model=self._footprint,
        )
        method = ContinuousSGP(
            moves + 1,
            self._points,
            self._kernel,
            self._noise,
            transform,
            num_robots=n,
            X_init=tours.reshape(-1, 2),
        )
        waypoints: Points = method.optimize()
        return waypoints


class _Footprint(Transform):
    """Footprint at one altitude, as the mean over its points; lengths are along x and y."""

    def __init__(self, sides: Points) -> None:
        super().__init__(aggregation_size=_RAYS**2)
        steps = (np.arange(_RAYS) + 0.5) / _RAYS - 0.5
        self._offsets = (
            np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2) * sides
        )

    def expand(self, points: Any, expand_sensor_model: bool = True, **unused: Any) -> Any:
        """Return the points in view from each waypoint, [W · _RAYS², 2]."""
        if not expand_sensor_model:
            return points
        return tf.reshape(points[:, None] + self._offsets, (-1, 2))

    def distance(self, points: Any) -> Any:
        """Return the length of the path through `points` [W, 2], [1]."""
        return tf.reduce_sum(tf.abs(points[1:] - points[:-1]))[None]
