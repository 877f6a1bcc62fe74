"""The files of params/: one complete and commented, what the others change, what they promise."""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from marl_framework.config.loading import config_to_dict, load_config
from marl_framework.config.messages import KEYS, SECTIONS
from marl_framework.config.model import Config

PARAMS = Path(__file__).resolve().parents[2] / "params"
FILES = sorted(PARAMS.glob("*.yaml"))
NAMES = (
    "areas",
    "balanced",
    "demo",
    "fast",
    "gpu",
    "mappo",
    "predict",
    "collective",
    "student",
    "rough",
    "test",
)
DEFAULTS = {"params.yaml", *(f"params_{name}.yaml" for name in NAMES)}


def keys_of(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of all values of a file."""
    names = []
    for key, value in tree.items():
        path = prefix + key
        names += keys_of(value, f"{path}.") if path in SECTIONS else [path]
    return names


def test_the_folder_holds_the_documented_files() -> None:
    assert {path.name for path in FILES} == DEFAULTS


def value_of(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree[name]
    return tree


def test_params_are_complete_and_in_order_and_every_value_has_a_comment() -> None:
    text = (PARAMS / "params.yaml").read_text(encoding="utf-8")
    assert keys_of(yaml.safe_load(text)) == list(KEYS)
    values = [line for line in text.splitlines() if re.match(r"\s*\w+: *[^#\s]", line)]
    assert len(values) == len(KEYS) - 1  # prediction.worlds is a list of sections
    assert [line for line in values if not re.search(r" # \S", line)] == []


def test_numbers_may_reach_the_ends_of_their_range_in_the_comment() -> None:
    number = r"(-?[\d.]+(?:e-?\d+)?)"
    text, sections, ranges = (PARAMS / "params.yaml").read_text(encoding="utf-8"), [], {}
    for indent, name, value, comment in re.findall(r"(?m)^( *)(\w+):([^#\n]*)(.*)$", text):
        sections = [*sections[: len(indent) // 2], name]
        found = re.search(rf"\((above )?{number},? to (below )?{number}\)", comment)
        if found and re.fullmatch(number, value.strip()):
            ranges[tuple(sections)] = found.groups()

    def is_refused(path: tuple[str, ...], value: Any) -> bool:
        tree: Any = value
        for name in reversed(path):
            tree = {name: tree}
        try:
            Config.model_validate(tree)
        except ValidationError as error:
            return any(found["loc"][: len(path)] == path for found in error.errors())
        return False

    assert len(ranges) > 60
    for path, (above, low, below, high) in ranges.items():
        for end, is_open, step in ((low, above, -1), (high, below, 1)):
            limit = yaml.safe_load(end)
            assert is_refused(path, limit) == bool(is_open), (path, end)
            assert is_refused(path, limit + step), (path, end)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_says_its_purpose_and_loads_without_a_warning(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    load_config(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_in_order_what_differs_from_the_one_it_extends(name: str) -> None:
    tree = yaml.safe_load((PARAMS / f"params_{name}.yaml").read_text(encoding="utf-8"))
    base = config_to_dict(load_config(PARAMS / tree.pop("extends")))
    keys = keys_of(tree)
    assert keys == [key for key in KEYS if key in keys]
    assert [key for key in keys if value_of(tree, key) == value_of(base, key)] == []


def test_params_are_the_defaults() -> None:
    assert load_config("params.yaml") == Config()
    text = (PARAMS / "params.yaml").read_text(encoding="utf-8")
    assert "600 x 5" in text.partition("environment:")[0]


def test_params_are_those_of_the_paper() -> None:
    config = load_config("params.yaml")
    networks, learning = config.networks, config.learning
    assert config.geometry.map_shape == (493, 493)
    assert config.geometry.lattice_shape == (11, 11, 3)
    assert config.geometry.altitudes == (5.0, 10.0, 15.0)
    assert config.missions.episode_length == 15
    assert (networks.actor.conv_channels, networks.critic.conv_channels) == (256, 256)
    assert (networks.actor.hidden_dim, networks.critic.hidden_dim) == (256, 256)
    assert (learning.actor.learning_rate, learning.critic.learning_rate) == (1e-5, 1e-4)
    assert (learning.batch_size, learning.batch_number, learning.data_passes) == (60, 5, 5)
    assert (learning.gamma, learning.lambda_, learning.copy_rate) == (0.99, 0.8, 10)


@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_uses_whole_rounds_of_missions(name: str) -> None:
    """All missions end together, so rounds that fill the batches waste nothing."""
    config = load_config(f"params_{name}")
    team = Fraction(sum(config.missions.team_sizes), len(config.missions.team_sizes))  # its mean
    transitions = config.environment.num_envs * team * config.missions.episode_length
    wanted = config.learning.batch_size * config.learning.batch_number
    assert wanted % transitions == 0


def test_the_test_file_is_small_and_the_gpu_file_large() -> None:
    config, large = load_config("params_test"), load_config("params_gpu")
    assert large.environment.num_envs >= 1024
    assert large.compute.precision == "bfloat16"
    assert config.environment.num_envs % 2 == 0
    assert config.learning.training_steps == 4
    assert config.networks.actor.conv_channels == config.networks.critic.conv_channels == 8


def test_the_demo_flies_over_a_real_map_and_is_fast_otherwise() -> None:
    demo, fast = (config_to_dict(load_config(f"params_{name}")) for name in ("demo", "fast"))
    raster = demo["sensor"]["simulation"].pop("raster")
    assert raster["path"] == "matplotlib:jacksboro_fault_dem.npz"
    assert demo["sensor"]["simulation"].pop("kinds") == ["raster"]
    del fast["sensor"]["simulation"]["raster"], fast["sensor"]["simulation"]["kinds"]
    assert demo["environment"] == fast["environment"]
    assert demo["sensor"] == fast["sensor"]


def test_the_mappo_file_has_the_papers_choices_and_the_transitions_of_the_fast_one() -> None:
    config, fast = load_config("params_mappo"), load_config("params_fast")
    learning = config.learning
    assert config.experiment.algorithm == "mappo"
    assert (
        config.schedule.transitions_per_batch
        == config.schedule.transitions_per_step
        == fast.schedule.transitions_per_step
    )
    assert (learning.gamma, learning.lambda_, learning.clip_ratio) == (0.99, 0.95, 0.2)
    assert (learning.value_clip, learning.huber_delta) == (0.2, 10)
    assert learning.value_normalization
    assert learning.actor.learning_rate == learning.critic.learning_rate == 5e-4
    assert learning.normalize_advantages
    assert not learning.use_eps
