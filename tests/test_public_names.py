"""The public names: an inventory, so that no change goes unnoticed."""

import importlib
import inspect

import pytest

import marl_framework

NAMES = """
Algorithm COMAWrapper Camera Config ConfigError ConvolutionalNetwork CoveragePlanner Decision
FlightRecord InformationGainPlanner Lattice LearnedPlanner MissionEnvironment MissionState
MissionTask NetworkSizes ObservationBuilder OraclePlanner Planner PortableActor PortableTeam
RandomPlanner ResetDraws Reward Rollout RolloutCollector RunFolder Seen Sensor StepDraws StepResult
TeamTask Terrain TerrainDraws TerrainKind Trainer Utility __version__ config_from_dict
config_to_dict dump_config find_checkpoint fly load_checkpoint load_config log_probabilities
make_actor make_algorithm make_planner mission_config policy_probabilities resolve_device
save_checkpoint
"""


def test_the_public_names_are_these() -> None:
    assert sorted(marl_framework.__all__) == NAMES.split()


@pytest.mark.parametrize("name", NAMES.split())
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    found = getattr(importlib.import_module("marl_framework"), name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found)
        assert found.__module__.startswith("marl_framework.")


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="Trianer"):
        _ = marl_framework.Trianer  # type: ignore[attr-defined]
