"""Former keys still load, and a params file can say what differs from another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.former import OBSOLETE, RENAMED
from marl_framework.config.loading import PARAMS, config_from_dict, config_to_dict, load_config
from marl_framework.config.messages import KEYS, SECTIONS
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import parse_yaml
from tests.former import former_layout

FORMER = Path(__file__).parents[1] / "data" / "former_params.yaml"
TYPE = "experiment.missions.type"
VALUES: dict[str, Any] = {
    "compute.device": "cpu",
    "compute.distributed_backend": "gloo",
    "compute.precision": "float32",
    "experiment.baselines.coverage.altitude": 10.0,
    "learning.advantage": "return",
    "learning.lr_scaling": "sqrt",
    "learning.target_update_mode": "soft",
}
"""Values of the keys that hold neither a number nor true or false."""


def tree_of(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def value_of(config: Config, path: str) -> Any:
    tree: Any = config_to_dict(config)
    for name in path.split("."):
        tree = tree[name]
    return tree


def other_value(key: str) -> Any:
    """A value of a present key that is not its default."""
    default = value_of(Config(), key)
    if key in VALUES:
        assert VALUES[key] != default
        return VALUES[key]
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else default / 2 + 0.1


def changed(config: Config) -> dict[str, Any]:
    """The keys that differ from the defaults."""
    return {key: value_of(config, key) for key in KEYS if value_of(config, key) != DEFAULTS[key]}


DEFAULTS = {key: value_of(Config(), key) for key in KEYS}


# --- former keys -----------------------------------------------------------------------------


def test_former_names_lead_to_present_keys_and_are_none_themselves() -> None:
    assert set(RENAMED.values()) <= set(KEYS)
    assert not (set(RENAMED) | OBSOLETE) & (set(KEYS) | SECTIONS)


@pytest.mark.parametrize("way", ["file", "override", "plain data"])
@pytest.mark.parametrize("old", sorted(RENAMED.keys() - {TYPE}))
def test_a_former_key_sets_the_present_one(old: str, way: str, tmp_path: Path) -> None:
    new = RENAMED[old]
    value = other_value(new)
    tree = tree_of(old, value)
    file = tmp_path / "p.yaml"
    file.write_text("{environment: {}}" if way == "override" else yaml.safe_dump(tree))
    overrides = [f"{old}={value}"] if way == "override" else []
    with pytest.warns(ConfigWarning) as caught:
        config = config_from_dict(tree) if way == "plain data" else load_config(file, overrides)
    assert changed(config) == {new: value}
    assert [str(warning.message).partition(": ")[2] for warning in caught] == [
        f"renamed keys: {old} is now {new}"
    ]


@pytest.mark.parametrize(
    ("former", "present"),
    [("COMA", "learned"), ("lawnmower", "coverage"), ("random", "random"), ("my.Own", "my.Own")],
)
def test_a_former_mission_type_is_a_policy(former: str, present: str) -> None:
    with pytest.warns(ConfigWarning, match=r"experiment\.missions\.type is now experiment\.policy"):
        config = config_from_dict(tree_of(TYPE, former))
    assert config.experiment.policy == present
    with pytest.warns(ConfigWarning) as caught:
        load_config("params.yaml", [f"{TYPE}={former}"])
    told = str(caught[0].message)
    assert told.startswith(f"override {TYPE}={former}: ")
    assert (f"{former} {present}" in told) == (former != present)


@pytest.mark.parametrize("name", ["COMA", "lawnmower"])
def test_a_former_value_belongs_to_the_former_key(name: str) -> None:
    with pytest.raises(ConfigError, match=r"experiment\.policy: must be one of 'learned'"):
        config_from_dict(tree_of("experiment.policy", name))


@pytest.mark.parametrize("value", [[1], {"a": 1}, None, 3])
def test_a_former_mission_type_that_is_no_text_is_one_clear_line(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"experiment\.policy: must be a text, got "):
        config_from_dict(tree_of(TYPE, value))


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_old_and_new_given_together_are_one_clear_error(old: str) -> None:
    new = RENAMED[old]
    value = other_value(new) if old != TYPE else "random"
    tree = tree_of(old, value)
    merge(tree, tree_of(new, value))
    with pytest.raises(ConfigError) as error:
        config_from_dict(tree, "p.yaml")
    assert str(error.value) == (
        f"p.yaml: {old}: is the former name of {new}, which is given too; drop it"
    )


def merge(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(below.get(key), dict) and isinstance(value, dict):
            merge(below[key], value)
        else:
            below[key] = value


def test_a_former_key_in_one_place_and_the_present_one_above_it_are_no_contradiction() -> None:
    with pytest.warns(ConfigWarning):
        config = config_from_dict({"networks": {"gamma": 0.5}}, overrides=["learning.gamma=0.25"])
    assert config.learning.gamma == 0.25


def test_an_error_in_a_former_override_names_the_override() -> None:
    with pytest.raises(ConfigError) as error:
        load_config("params.yaml", ["networks.gamma=3"])
    assert str(error.value).endswith(
        "learning.gamma: must be at most 1, got 3 (override networks.gamma=3)"
    )


def test_a_complete_former_file_loads_as_the_present_one_and_warns_once() -> None:
    with pytest.warns(ConfigWarning) as caught:
        config = load_config(FORMER)
    assert config == load_config("params_fast.yaml")
    (text,) = (str(warning.message) for warning in caught)
    assert text.isprintable()
    assert all(f"{old} is now {new}" in text for old, new in RENAMED.items())
    assert text.endswith("these keys have no effect any more: networks.type, sensor.type")


def test_plain_data_of_former_keys_is_left_as_it_was() -> None:
    tree = parse_yaml(FORMER.read_text(), "former")
    before = repr(tree)
    with pytest.warns(ConfigWarning):
        config_from_dict(tree)
    assert repr(tree) == before


def test_the_layout_that_checkpoints_of_the_past_hold_is_the_one_of_the_file() -> None:
    former = former_layout(config_to_dict(load_config("params_fast.yaml")))
    assert former == parse_yaml(FORMER.read_text(), "former")


# --- extends ---------------------------------------------------------------------------------


def write(folder: Path, **files: str) -> Path:
    """Write files by name; return the last one's path."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{name}.yaml"


def test_a_chain_of_files_is_laid_on_top_of_each_other(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        base="{learning: {gamma: 0.1, tau: 0.1, copy_rate: 7}, experiment: {title: base}}",
        middle="{extends: base.yaml, learning: {gamma: 0.2, tau: 0.2}}",
        top="{extends: middle.yaml, learning: {gamma: 0.3}, sensor: {model: {table: {5: 0.1, "
        "15: 0.2}}}}",
    )
    assert changed(load_config(file)) == {
        "sensor.model.table": {5.0: 0.1, 15.0: 0.2},  # a value, not a section: replaced as a whole
        "experiment.title": "base",
        "learning.copy_rate": 7,
        "learning.tau": 0.2,
        "learning.gamma": 0.3,
    }
    assert load_config(file, ["learning.gamma=0.4"]).learning.gamma == 0.4


@pytest.mark.parametrize(
    "name", ["params_fast.yaml", "params_fast", str(PARAMS / "params_fast.yaml")]
)
def test_a_base_is_found_in_params(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, top=f"{{extends: {name}, environment: {{seed: 9}}}}")
    assert load_config(file) == load_config("params_fast", ["environment.seed=9"])


def test_a_base_beside_the_file_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere, params_fast="{environment: {seed: 1}}")
    monkeypatch.chdir(elsewhere)  # where it was started has no say
    file = write(tmp_path, top="{extends: params_fast.yaml, mapping: {}}")
    assert load_config(file) == load_config(PARAMS / "params_fast.yaml")
    write(tmp_path, params_fast="{environment: {seed: 2}}")
    assert changed(load_config(file)) == {"environment.seed": 2}


def test_a_former_key_of_a_base_gives_way_to_a_present_one_above_it(tmp_path: Path) -> None:
    base = write(tmp_path, base="{networks: {gamma: 0.5, tf32: false}}")
    file = write(tmp_path, top="{extends: base.yaml, learning: {gamma: 0.6}}")
    with pytest.warns(ConfigWarning) as caught:
        assert changed(load_config(file)) == {"learning.gamma": 0.6, "compute.tf32": False}
    assert [str(warning.message).partition(": ")[0] for warning in caught] == [str(base)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{extends: nowhere.yaml}", "extends: nowhere.yaml: no such file; params/ holds params"),
        ("{extends: ''}", "extends: '': no such file"),
        ("{extends: .}", "extends: .: is a directory"),
        ("{extends: 3}", "extends: must be the name of a file, got 3"),
        ("{extends: [params.yaml]}", "extends: must be the name of a file, got ['params.yaml']"),
        ("{extends: null}", "extends: must be the name of a file, got null"),
        ("{extends: top.yaml}", "extends: top.yaml extends this file itself"),
        ("{networks: {extends: params.yaml}}", "unknown key networks.extends"),
    ],
)
def test_a_base_that_cannot_be_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, top=text)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).startswith(f"{file}: {words}")
    assert str(error.value).isprintable()


def test_files_in_a_circle_are_one_clear_line(tmp_path: Path) -> None:
    file = write(
        tmp_path, a="{extends: b.yaml}", b="{extends: c.yaml}", c="{extends: ./a.yaml}"
    ).with_name("a.yaml")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).endswith("c.yaml: extends: ./a.yaml extends this file itself")


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("learning: {gamma: 2}", "top.yaml: learning.gamma: must be at most 1, got 2 (from {})"),
        (
            "learning: {gama: 1}",
            "unknown key learning.gama; the nearest known key is learning.gamma (from {})",
        ),
        ("- 1", "{}: must hold sections such as networks:, got [1]"),
        ("", "{}: the file is empty; it must hold sections such as networks:"),
        ("learning: {", "{}: line 1: broken YAML: "),
    ],
)
def test_an_error_in_a_base_names_the_base(tmp_path: Path, base: str, words: str) -> None:
    below = write(tmp_path, base=base)
    file = write(tmp_path, top="{extends: base.yaml, environment: {seed: 1}}")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert words.format(below) in str(error.value)


def test_a_file_mends_what_is_wrong_in_its_base_and_is_blamed_for_its_own(tmp_path: Path) -> None:
    write(tmp_path, base="learning: {gamma: 2, tau: 2}")
    file = write(tmp_path, top="{extends: base.yaml, learning: {gamma: 1, tau: 3}}")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value) == f"{file}: learning.tau: must be at most 1, got 3"


UAV = "experiment.uav."
SOME, ALL = [1.0, 5.0], [0, 15, 25, 100]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["fix_range=true"], 25.0),
        (["fix_range=false"], ALL),
        (["sampled_ranges=[1.0, 5.0]"], 25.0),
        (["sampled_ranges=[1.0, 5.0]", "fix_range=false"], SOME),
        (["fix_range=false", "sampled_ranges=[1.0, 5.0]"], SOME),
        (["fix_range=false", "communication_range=7", "fix_range=true"], 7.0),
        (["communication_range=7", "fix_range=false", "fix_range=true"], 7.0),
        (["fix_range=false", "communication_range=7"], 7.0),
    ],
)
def test_former_ranges_are_lists(texts: list[str], expected: Any) -> None:
    with pytest.warns(ConfigWarning, match="communication_range takes a list to draw from"):
        config = load_config("params.yaml", [UAV + text for text in texts])
    assert value_of(config, UAV + "communication_range") == expected


def test_former_ranges_of_a_file_and_its_base(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("experiment: {uav: {sampled_ranges: [1.0, 5.0]}}")
    file = tmp_path / "mine.yaml"
    file.write_text("extends: base.yaml\nexperiment: {uav: {fix_range: false}}")
    with pytest.warns(ConfigWarning):
        assert value_of(load_config(file), UAV + "communication_range") == SOME


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fix_range=1", "experiment.uav.fix_range: must be true or false, got 1"),
        ("sampled_ranges=[x]", "communication_range[0]: must be a number, got 'x' (override"),
    ],
)
def test_former_ranges_that_cannot_be_are_one_clear_line(text: str, words: str) -> None:
    overrides = [f"{UAV}fix_range=false", UAV + text] if "sampled" in text else [UAV + text]
    with pytest.raises(ConfigError) as caught:
        load_config("params.yaml", overrides)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["part", "centred_part"])
def test_teams_that_saw_parts_are_told_to_train_anew(name: str, tmp_path: Path) -> None:
    """One that did not, as all runs of then say, loads as before."""
    tree = config_to_dict(Config())
    tree["observation"] |= {"part": False, "centred_part": False}
    with pytest.warns(ConfigWarning, match=r"no effect any more: observation\.part"):
        assert config_from_dict(tree, "run") == Config()
    tree["observation"][name] = True
    now = name.replace("part", "sector")
    words = rf"observation\.{name}: parts went by .* set observation\.{now} instead"
    with pytest.raises(ConfigError, match=words):
        config_from_dict(tree, "run")
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"extends": "params_test.yaml", "observation": {name: True}}))
    with pytest.raises(ConfigError, match=words):
        load_config(file)
    with pytest.raises(ConfigError, match=words):
        load_config("params_test", [f"observation.{name}=true"])
