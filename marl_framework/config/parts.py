"""Parts of a params file: names of built-in ones, and loading by dotted path.

A new built-in part is its file and one line here.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from marl_framework.config.errors import ConfigError

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


def load_part(path: str, key: str, *parameters: str) -> Callable[..., Any]:
    """Return the class or function of a dotted path, `module.name`.

    Args:
        path: dotted path; its module is found as `import` does.
        key: key or option that names it, for messages.
        parameters: names of the arguments that it must accept.

    Raises:
        ConfigError: it does not exist, cannot be imported, or cannot be called with these.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a custom module can raise anything when it is imported
        problem = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            problem = f"there is no module {missing}; start in its folder, or add it to PYTHONPATH"
        raise ConfigError(f"{key}: {path}: {problem}") from error
    part = getattr(module, name, None)
    if part is None:
        nearest = difflib.get_close_matches(name, vars(module), 1, 0)
        hint = f"; the nearest name there is {nearest[0]}" if nearest else ""
        raise ConfigError(f"{key}: {path}: module {module_name} has no {name}{hint}")
    if not callable(part):
        raise ConfigError(f"{key}: {path}: must be a class or a function, not {part!r:.60}")
    try:
        inspect.signature(part).bind(*parameters)
    except TypeError:
        called = f"{name}({', '.join(parameters)})"
        raise ConfigError(f"{key}: {path}: must be callable as {called}") from None
    except ValueError:  # a built-in without a signature
        pass
    return part
