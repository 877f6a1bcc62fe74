"""Registry of built-in components, and loading of custom ones by dotted path.

To add a built-in component, add its file and one line here.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from traceback import extract_tb
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

_LIBRARIES = (str(Path(__file__).parents[1]) + os.sep, f"{os.sep}torch{os.sep}", "importlib")
"""Parts of the names of files that call custom parts."""

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


def make_part(known: Mapping[str, str], name: str, key: str, **arguments: Any) -> Any:
    """Create the part `name`: a key of `known`, which has the built-in parts, or a dotted path.

    The part is called with the values of `arguments`, in order. Messages cite `key`. Raises
    ConfigError as `load_part`, and if a custom part raises an exception, see `custom_code`.
    """
    make = load_part(known.get(name, name), key, *arguments)
    if name in known:
        return make(*arguments.values())
    with custom_code(f"{key}: {name}: cannot be created"):
        return make(*arguments.values())


@contextmanager
def custom_code(problem: str) -> Iterator[None]:
    """Convert exceptions of a custom part to a ConfigError, which has them as cause.

    The message has the problem, type and text of the exception, and its line in the first file
    outside of this library and PyTorch.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        calls = [(call.filename, call.lineno) for call in extract_tb(error.__traceback__)]
        calls = [call for call in calls if not any(part in call[0] for part in _LIBRARIES)]
        own = [line for file, line in calls if file == calls[0][0]]
        place = f" in line {own[-1]} of {calls[0][0]}" if own else ""
        text = f"{type(error).__name__}{place}: {shorten(str(error), 300)}"
        raise ConfigError(f"{problem}: {text}") from error


def load_part(path: str, key: str, *parameters: str) -> Callable[..., Any]:
    """Import the class or function at a dotted path, `module.name`.

    The module is located as by `import`. Messages cite `key`; `parameters` are the names of the
    arguments that the part must accept. Raises ConfigError if the part does not exist, or cannot be
    imported or called with `parameters`.
    """
    module_name, _, name = path.rpartition(".")
    with custom_code(f"{key}: {path}: {module_name} cannot be imported"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                f"{key}: {path}: there is no module {error.name}; run from the folder that "
                "contains it, or add that folder to PYTHONPATH"
            ) from error
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
