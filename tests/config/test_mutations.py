"""Round trips, and whatever else a configuration can be made of."""

import math
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.former import RENAMED
from marl_framework.config.loading import config_from_dict, config_to_dict, dump_config, load_config
from marl_framework.config.messages import KEYS, SECTIONS
from marl_framework.config.model import Config


def test_dumping_and_loading_gives_an_equal_configuration(tmp_path: Path) -> None:
    config = config_from_dict(
        {
            "experiment": {
                "title": "1e-5",  # a text that reads as a number
                "uav": {"communication_range": [0, math.inf], "failure_rate": [0.0, 0.5]},
                "missions": {"n_agents": [2, 4]},
            },
            "learning": {"lambda": 0.3, "actor": {"learning_rate": 1e-7}},
            "sensor": {"simulation": {"kinds": ["raster"], "raster": {"path": "= ü"}}},
        }
    )
    dump_config(config, tmp_path / "dump.yaml")
    assert load_config(tmp_path / "dump.yaml") == config
    assert config_from_dict(config_to_dict(config)) == config
    assert "lambda" in config_to_dict(config)["learning"]


def test_dumping_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        dump_config(Config(), tmp_path / "no" / "dump.yaml")


def test_plain_data_is_left_as_it_was() -> None:
    tree = {"sensor": {"model": {"type": "altitude_dependent", "coeff_a": 1}, "simulation": None}}
    before = repr(tree)
    with pytest.warns(ConfigWarning):
        config_from_dict(tree)
    assert repr(tree) == before


@pytest.mark.parametrize("tree", [None, [], "text", 3])
def test_plain_data_must_be_a_mapping(tree: Any) -> None:
    with pytest.raises(ConfigError, match=r"^checkpoint: must hold sections"):
        config_from_dict(tree, "checkpoint")


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 10**30, 10**400, -(10**5000), 2**63, sys.float_info.max, 5e-324]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["exponential", "raster", "coverage", "lawnmower", "cuda:0", "p60", "1e-5"]),
    st.recursive(
        st.integers() | st.text(max_size=3) | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.integers() | st.text(max_size=3) | st.floats(), inner, max_size=3)
        ),
        max_leaves=6,
    ),
)
NAMES = st.sampled_from([*KEYS, *RENAMED, *sorted(SECTIONS - {""})])
CHANGES = st.lists(
    st.tuples(NAMES, st.sampled_from(["set", "drop", "add"]), ODD, st.text(max_size=5)),
    min_size=1,
    max_size=4,
)
Changes = list[tuple[str, str, Any, str]]


def node_of(tree: dict[str, Any], path: str) -> Any:
    """The section that holds a key, if the tree still has it."""
    node: Any = tree
    for name in path.split(".")[:-1]:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def mutated(changes: Changes) -> dict[str, Any]:
    return change(config_to_dict(Config()), changes)


def change(tree: dict[str, Any], changes: Changes) -> dict[str, Any]:
    for path, what, value, name in changes:
        node, leaf = node_of(tree, path), path.rpartition(".")[2]
        if what == "drop":
            node.pop(leaf, None)
        else:
            node[leaf if what == "set" else name] = value
    return tree


def config_or_line(load: Callable[[], Config]) -> Config | str:
    try:
        return load()
    except ConfigError as error:
        return str(error)


def assert_sound(result: Config | str, source: str) -> None:
    """Either a usable configuration that survives a round trip, or one line with its source."""
    if isinstance(result, str):
        assert result.startswith(f"{source}: ")
        assert result.isprintable()
        assert len(result) < 3000
        return
    assert all(
        1 < n <= 2**26 for n in (*result.geometry.map_shape, *result.geometry.lattice_shape[:2])
    )
    assert len(result.geometry.altitudes) == result.geometry.lattice_shape[2] <= 100
    assert config_from_dict(config_to_dict(result)) == result


@given(CHANGES)
@settings(max_examples=100)
def test_a_mutated_configuration_is_sound_or_one_clear_line(changes: Changes) -> None:
    tree = mutated(changes)
    assert_sound(config_or_line(lambda: config_from_dict(tree, "here")), "here")


@given(CHANGES)
@settings(max_examples=60)
def test_a_mutated_file_is_sound_or_one_clear_line(changes: Changes) -> None:
    try:
        text = yaml.safe_dump(mutated(changes))
    except ValueError:  # more digits than Python writes
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "p.yaml"
        file.write_text(text, encoding="utf-8", errors="replace")
        result = config_or_line(lambda: load_config(file))
        assert_sound(result, str(file))
        if isinstance(result, Config):
            dump_config(result, file)
            assert load_config(file) == result


@given(st.binary(max_size=60) | st.text("ab:-[]{},&*!|>%@#'\"\n 019.e?<=~", max_size=60))
@settings(max_examples=200)
def test_noise_is_one_clear_line(noise: bytes | str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "p.yaml"
        file.write_bytes(noise if isinstance(noise, bytes) else noise.encode())
        assert_sound(config_or_line(lambda: load_config(file)), str(file))


@given(st.text(max_size=12))
@settings(max_examples=25)
def test_any_override_is_sound_or_one_clear_line(text: str) -> None:
    for override in (text, f"learning.{text}", f"learning.gamma={text}", f"{text}={text}"):
        result = config_or_line(partial(load_config, "params_test", [override]))
        if isinstance(result, str):
            assert result.isprintable()
            assert "override" in result
