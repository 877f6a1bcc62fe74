"""Multi-agent reinforcement learning for terrain mapping with UAVs.

The public names are those of `__all__`. Each is loaded when it is first asked for, so that
`import marl_framework` alone loads no heavy library.
"""

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# PyTorch and the compiled loops have a pool of OpenMP threads each. Idle threads of one that spin
# for long keep the cores from the other: on two cores a step then takes a hundred times as long.
# Read once, when the first of them is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

try:
    __version__ = version("marl_framework")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

# Also in __init__.pyi, for type checkers.
_PUBLIC = {
    "config": "Config",
    "config_io": "ConfigError config_from_dict config_to_dict dump_config load_config",
    "device": "resolve_device",
    "mission.environment": "MissionEnvironment ResetDraws StepDraws StepResult",
    "mission.state": "MissionState",
    "mission.lattice": "Lattice",
    "mission.camera": "Camera",
    "mission.terrain": "Terrain TerrainDraws",
    "mission.own_terrain": "OwnTerrain",
    "mission.reward": "Reward Utility",
    "observations.builder": "ObservationBuilder Seen",
    "coma.networks": "ActorNetwork CriticNetwork NetworkSizes",
    "coma.rollout": "Rollout RolloutCollector TeamTask",
    "coma_wrapper": "COMAWrapper mission_sizes",
    "planners": "CoveragePlanner InformationGainPlanner LearnedPlanner "
    "OraclePlanner Planner RandomPlanner",
    "planners.portable": "PortableActor PortableTeam",
    "training.task": "MissionTask",
    "training.trainer": "Trainer",
    "training.run_folder": "RunFolder",
    "training.checkpoint": "load_checkpoint save_checkpoint",
    "evaluation.flight": "FlightRecord fly",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
