"""Built-in parts: names in a params file to dotted paths.

A custom part is named by its dotted path and loaded the same way (`config.dotted`). A new
built-in part is its file and one line here.
"""

from __future__ import annotations

from typing import Any

ALGORITHMS = {
    "coma": "marl_framework.algorithms.coma.COMAWrapper",
    "iac": "marl_framework.algorithms.state_values.IAC",
    "central_v": "marl_framework.algorithms.state_values.CentralV",
    "ippo": "marl_framework.algorithms.ppo.IPPO",
    "mappo": "marl_framework.algorithms.ppo.MAPPO",
}

KNOWN_TO = dict.fromkeys(("value_normalization", "value_clip", "huber_delta"), ("ippo", "mappo"))
"""Keys of `learning` that only some of these algorithms read."""

_PPO: dict[str, Any] = {"learning.clip_ratio": 0.2}
ALGORITHM_DEFAULTS = {"ippo": _PPO, "mappo": _PPO}
"""Values that these algorithms cannot do without, for keys that are null or absent."""

NETWORKS = {
    "cnn": "marl_framework.networks.convolutional.ConvolutionalNetwork",
    "attention": "marl_framework.networks.attention.AttentionNetwork",
}

SENSORS = {
    "table": "marl_framework.mission.sensor.TableSensor",
    "exponential": "marl_framework.mission.sensor.ExponentialSensor",
}

TERRAINS = {
    "split": "marl_framework.mission.terrains.rectangles.Split",
    "corner": "marl_framework.mission.terrains.rectangles.Corner",
    "band": "marl_framework.mission.terrains.rectangles.Band",
    "two_corners": "marl_framework.mission.terrains.rectangles.TwoCorners",
    "four_corners": "marl_framework.mission.terrains.rectangles.FourCorners",
    "random_field": "marl_framework.mission.terrains.random_field.RandomField",
    "raster": "marl_framework.mission.terrains.raster.RasterTerrain",
    "landscape": "marl_framework.mission.terrains.random_field.Landscape",
}
"""Terrains, in the order in which their random numbers are drawn."""

PLANNERS = {
    "information_gain": "marl_framework.planners.information_gain.make",
    "coverage": "marl_framework.planners.coverage.make",
    "random": "marl_framework.planners.random_flight.make",
    "search": "marl_framework.planners.search.planner.make",
    "oracle": "marl_framework.planners.search.planner.make_oracle",
}

LEARNED = "learned"
"""Policy name of the trained team."""
PLANNER_NAMES = (LEARNED, *PLANNERS)
