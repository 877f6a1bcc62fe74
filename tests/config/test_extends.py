"""A params file can hold only what differs from another one."""

from pathlib import Path

import pytest

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import PARAMS, differences, load_config
from tests.config.test_former import changed


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


def test_a_base_is_found_beside_the_file_or_in_params(tmp_path, monkeypatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere, params_fast="{environment: {seed: 1}}")
    monkeypatch.chdir(elsewhere)  # the folder of the start does not matter
    for name in ("params_fast.yaml", "params_fast", PARAMS / "params_fast.yaml"):
        file = write(tmp_path, top=f"{{extends: {name}, environment: {{seed: 9}}}}")
        assert load_config(file) == load_config(PARAMS / "params_fast.yaml", ["environment.seed=9"])
    write(tmp_path, params_fast="{environment: {seed: 2}}")
    file = write(tmp_path, top="{extends: params_fast.yaml, mapping: {}}")
    assert changed(load_config(file)) == {"environment.seed": 2}


@pytest.mark.parametrize(
    "text",
    [
        "{extends: nowhere.yaml}",
        "{extends: ''}",
        "{extends: .}",
        "{extends: 3}",
        "{extends: [params.yaml]}",
        "{extends: null}",
        "{extends: top.yaml}",
    ],
)
def test_a_base_that_cannot_be_is_one_clear_line(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, top=text)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).startswith(f"{file}: extends: ")


def test_only_the_root_extends(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"networks\.extends"):
        load_config(write(tmp_path, top="{networks: {extends: params.yaml}}"))


def test_files_in_a_circle_are_one_clear_line(tmp_path: Path) -> None:
    files = {"a": "{extends: b.yaml}", "b": "{extends: c.yaml}", "c": "{extends: ./a.yaml}"}
    write(tmp_path, **files)
    with pytest.raises(ConfigError, match=r"c\.yaml: extends: \./a\.yaml"):
        load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("learning: {gamma: 2}", r"top\.yaml: learning\.gamma: .*\(from {}\)$"),
        ("learning: {gama: 1}", r"top\.yaml: .*learning\.gama.*\(from {}\)$"),
        ("- 1", "^{}: "),
        ("", "^{}: "),
        ("learning: {", "^{}: line 1: "),
    ],
)
def test_an_error_in_a_base_names_the_base(tmp_path: Path, base: str, words: str) -> None:
    below = write(tmp_path, base=base)
    file = write(tmp_path, top="{extends: base.yaml, environment: {seed: 1}}")
    with pytest.raises(ConfigError, match=words.replace("{}", str(below))):
        load_config(file)


def test_a_file_mends_what_is_wrong_in_its_base_and_is_blamed_for_its_own(tmp_path: Path) -> None:
    write(tmp_path, base="learning: {gamma: 2, tau: 2}")
    file = write(tmp_path, top="{extends: base.yaml, learning: {gamma: 1, tau: 3}}")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    text = str(error.value)
    assert text.startswith(f"{file}: learning.tau: ")
    assert "gamma" not in text
    assert "base.yaml" not in text


def test_an_override_may_be_the_keys_of_a_file_without_its_base(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        base="{learning: {gamma: 0.1, batch_size: 9}}",
        top="{extends: base.yaml, learning: {gamma: 0.2, lambda: 0.2}}",
    )
    plain = load_config("params_test.yaml")
    changed = load_config(
        "params_test.yaml", ["learning.lambda=0.3", f"@{file}", "learning.gamma=0.4"]
    )
    new = {key: value for key, (_, value) in differences(plain, changed).items()}
    assert new == {"learning.gamma": 0.4, "learning.lambda": 0.2}


@pytest.mark.parametrize(
    ("text", "named"),
    [("3", "must hold sections"), ("{learning: {gamma: 2}}", "learning.gamma"), ("", "empty")],
)
def test_problems_of_an_override_by_a_file_name_it(tmp_path: Path, text: str, named: str) -> None:
    file = write(tmp_path, top=text)
    with pytest.raises(ConfigError, match=named) as error:
        load_config("params_test.yaml", [f"@{file}"])
    assert str(file) in str(error.value)


def test_an_override_by_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        load_config("params_test.yaml", ["@nowhere.yaml"])
