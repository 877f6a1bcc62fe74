"""The public names: an inventory, so that none goes or comes unnoticed."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import marl_framework

NAMES = [
    "ActorNetwork",
    "COMAWrapper",
    "Camera",
    "Config",
    "ConfigError",
    "CoveragePlanner",
    "CriticNetwork",
    "FlightRecord",
    "InformationGainPlanner",
    "Lattice",
    "LearnedPlanner",
    "MissionEnvironment",
    "MissionState",
    "MissionTask",
    "NetworkSizes",
    "ObservationBuilder",
    "OraclePlanner",
    "OwnTerrain",
    "Planner",
    "PortableActor",
    "PortableTeam",
    "RandomPlanner",
    "ResetDraws",
    "Reward",
    "Rollout",
    "RolloutCollector",
    "RunFolder",
    "Seen",
    "StepDraws",
    "StepResult",
    "TeamTask",
    "Terrain",
    "TerrainDraws",
    "Trainer",
    "Utility",
    "__version__",
    "config_from_dict",
    "config_to_dict",
    "dump_config",
    "fly",
    "load_checkpoint",
    "load_config",
    "mission_sizes",
    "resolve_device",
    "save_checkpoint",
]


def test_the_public_names_are_these() -> None:
    assert sorted(marl_framework.__all__) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_imported_and_is_explained(name: str) -> None:
    found = getattr(importlib.import_module("marl_framework"), name)
    assert name in dir(marl_framework)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found)
        assert found.__module__.startswith("marl_framework.")


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="'marl_framework' has no attribute 'Trianer'"):
        _ = marl_framework.Trianer  # type: ignore[attr-defined]


def test_type_checkers_are_told_the_same() -> None:
    stub = Path(marl_framework.__file__).with_suffix(".pyi")
    told = {
        alias.asname: node.module
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    homes = {name: f"marl_framework.{module}" for name, module in marl_framework._HOME.items()}
    assert told == homes
