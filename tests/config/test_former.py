"""Keys of the published params.yaml load under their present names; others of the past do not."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.former import OBSOLETE, REMOVED, RENAMED
from marl_framework.config.loading import config_from_dict, load_config, values_by_key
from marl_framework.config.messages import KEYS, SECTIONS
from marl_framework.config.model import Config

PUBLISHED = Path(__file__).parents[1] / "data" / "published_params.yaml"
DEFAULTS = values_by_key(Config())
TYPE, RANGE = "experiment.missions.type", "experiment.uav.communication_range"
VALUES = {TYPE: "random", "networks.critic.target_update_mode": "soft"}


def tree_of(*paths: str, value: Any) -> dict[str, Any]:
    """Plain data with one value under some dotted names."""
    tree: dict[str, Any] = {}
    for path in paths:
        *sections, leaf = path.split(".")
        node = tree
        for name in sections:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def changed(config: Config) -> dict[str, Any]:
    """The keys that differ from the defaults."""
    return {key: value for key, value in values_by_key(config).items() if value != DEFAULTS[key]}


def published_keys(tree: dict[str, Any], section: str = "") -> list[str]:
    """Dotted names of all keys of the published file."""
    keys = []
    for name, value in tree.items():
        path = f"{section}{name}"
        keys += published_keys(value, f"{path}.") if isinstance(value, dict) else [path]
    return keys


def test_the_published_file_loads_and_one_warning_names_what_has_no_effect() -> None:
    with pytest.warns(ConfigWarning) as caught:
        config = load_config(PUBLISHED)
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message).isprintable()
    assert changed(config) == {
        "environment.num_envs": 2,
        "experiment.title": "published",
        "networks.actor.hidden_dim": 128,
        "networks.critic.hidden_dim": 64,
    }
    named = set(re.findall(r"[\w.]+", str(warning.message)))
    unused = {*OBSOLETE, "sensor.model.coeff_a", "sensor.model.coeff_b"}
    assert named & unused == unused


def test_only_keys_of_the_published_file_are_translated() -> None:
    published = published_keys(yaml.safe_load(PUBLISHED.read_text()))
    assert RENAMED.keys() | OBSOLETE <= {*published, "classification"}
    assert set(RENAMED.values()) <= set(KEYS)
    assert not (RENAMED.keys() | REMOVED.keys() | OBSOLETE) & {*KEYS, *SECTIONS}


@pytest.mark.parametrize("old", RENAMED)
def test_a_former_key_sets_the_present_one(old: str) -> None:
    new = RENAMED[old]
    default = DEFAULTS[new]
    other = not default if isinstance(default, bool) else type(default)(0.25) or 7
    value = VALUES.get(old, other)
    with pytest.warns(ConfigWarning, match=rf"{re.escape(old)} is now {re.escape(new)}"):
        assert changed(config_from_dict(tree_of(old, value=value))) == {new: value}
    with pytest.warns(ConfigWarning, match=rf"^override {re.escape(old)}="):
        assert changed(load_config("params.yaml", [f"{old}={value}"])) == {new: value}
    with pytest.raises(ConfigError, match=rf"^params: {re.escape(old)}: .*{re.escape(new)}"):
        config_from_dict(tree_of(old, new, value=value), "params")


@pytest.mark.parametrize(("former", "present"), [("COMA", "learned"), ("lawnmower", "coverage")])
def test_a_former_mission_type_is_a_policy(former: str, present: str) -> None:
    with pytest.warns(ConfigWarning, match=f"{former} is {present}"):
        assert config_from_dict(tree_of(TYPE, value=former)).experiment.policy == present
    with pytest.raises(ConfigError, match=r"experiment\.policy: "):
        config_from_dict(tree_of("experiment.policy", value=former))
    with pytest.raises(ConfigError, match=r"experiment\.policy: "):
        config_from_dict(tree_of(TYPE, value=[former]))


def test_ranges_are_drawn_where_they_were_not_fixed() -> None:
    uav = {"fix_range": False, "communication_range": 25}
    with pytest.warns(ConfigWarning, match=re.escape(RANGE)):
        config = config_from_dict({"experiment": {"uav": uav}})
    assert changed(config) == {RANGE: (0, 15, 25, 100)}


@pytest.mark.parametrize(("text", "kinds"), [("", ("split",)), (", kinds: [band]", ("band",))])
def test_a_published_random_field_is_split_unless_kinds_are_given(text, kinds) -> None:
    tree = yaml.safe_load(f"sensor: {{simulation: {{type: random_field{text}}}}}")
    with pytest.warns(ConfigWarning, match=r"sensor\.simulation\.type"):
        assert config_from_dict(tree).sensor.simulation.kinds == kinds


def test_a_former_key_of_a_base_gives_way_to_a_present_one_above_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("{networks: {gamma: 0.5, data_passes: 7}}")
    file = tmp_path / "top.yaml"
    file.write_text("{extends: base.yaml, learning: {gamma: 0.6}}")
    with pytest.warns(ConfigWarning, match=r"base\.yaml: "):
        assert changed(load_config(file)) == {"learning.gamma": 0.6, "learning.data_passes": 7}


@pytest.mark.parametrize(
    ("old", "near"),
    [("networks.device", "compute.device"), ("networks.precision", "compute.precision")],
)
def test_unpublished_keys_of_the_past_are_unknown(old: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(old)}; .* {re.escape(near)}"):
        config_from_dict(tree_of(old, value=True))


@pytest.mark.filterwarnings("error")
def test_removed_keys_of_a_checkpoint_say_nothing_at_their_defaults() -> None:
    for key, default in REMOVED.items():
        assert config_from_dict(tree_of(key, value=default)) == Config()


@pytest.mark.parametrize("key", REMOVED)
def test_removed_keys_with_other_values_are_said_to_have_no_effect(key: str) -> None:
    with pytest.warns(ConfigWarning, match=re.escape(key)):
        assert config_from_dict(tree_of(key, value="other")) == Config()
