"""Registry of built-in components, and loading of custom ones by dotted path.

To add a built-in component, add its file and one line here.
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
    "sac": "marl_framework.algorithms.sac.SAC",
    "isac": "marl_framework.algorithms.sac.ISAC",
    "qmix": "marl_framework.algorithms.qmix.QMIX",
}

KEY_READERS = {
    **dict.fromkeys(("value_normalization", "value_clip", "huber_delta"), ("ippo", "mappo")),
    **dict.fromkeys(("replay_size", "temperature"), ("sac", "isac", "qmix")),
    "target_entropy": ("sac", "isac"),
}
"""Keys of `learning` that not all algorithms read, with the algorithms that do."""

_PPO: dict[str, Any] = {"learning.clip_ratio": 0.2}
_REPLAY: dict[str, Any] = {"learning.replay_size": 100_000}
ALGORITHM_DEFAULTS = {
    **dict.fromkeys(("ippo", "mappo"), _PPO),
    **dict.fromkeys(("sac", "isac", "qmix"), _REPLAY),
}
"""Per-algorithm defaults for required keys that are null or absent."""

NETWORKS = {
    "cnn": "marl_framework.networks.convolutional.ConvolutionalNetwork",
    "attention": "marl_framework.networks.attention.AttentionNetwork",
}

SENSORS = {
    "table": "marl_framework.mission.sensor.TableSensor",
    "exponential": "marl_framework.mission.sensor.ExponentialSensor",
}

DETECTORS = {"threshold": "marl_framework.flying.frame_camera.ThresholdDetector"}

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
"""Planner name of the trained team."""
PLANNER_NAMES = (LEARNED, *PLANNERS)


def has_custom_parts(config: Any) -> bool:
    """Return whether steps of a training run a component that a `Config` names by a dotted path.

    Sensors do not count: they are read once, before the training.
    """
    networks = (config.networks.actor.type, config.networks.critic.type)
    names = (config.experiment.algorithm, *networks, *config.sensor.simulation.kinds)
    return config.experiment.reward.function is not None or any("." in name for name in names)


def load_part(path: str, key: str, *parameters: str) -> Callable[..., Any]:
    """Import the class or function at a dotted path, `module.name`.

    The module is located as by `import`. Messages cite `key`; `parameters` are the names of the
    arguments that the part must accept. Raises ConfigError if the part does not exist, or cannot be
    imported or called with `parameters`.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing a custom module can raise anything
        problem = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            problem = (
                f"there is no module {missing}; run from the folder that contains it, or add that "
                "folder to PYTHONPATH"
            )
        raise ConfigError(f"{key}: {path}: {problem}") from error
    part = getattr(module, name, None)
    if part is None:
        public = [other for other in vars(module) if not other.startswith("_")]
        nearest = difflib.get_close_matches(name, public, 1, 0)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"{key}: {path}: module {module_name} has no {name}{hint}")
    if not callable(part):
        raise ConfigError(f"{key}: {path}: must be a class or a function, not {part!r:.60}")
    try:
        inspect.signature(part).bind(*parameters)
    except TypeError:
        called = f"{name}({', '.join(parameters)})"
        raise ConfigError(f"{key}: {path}: must be callable as {called}") from None
    except ValueError:  # built-in function without a signature
        pass
    return part
