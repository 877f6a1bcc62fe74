from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.runs import folder as folder_module
from marl_framework.runs.files import read_json
from marl_framework.runs.folder import RunFolder, describe_environment, write_environment
from marl_framework.runs.names import check_run_name, checkpoint_file

CONFIG = Config()


def test_a_new_run_holds_configuration_environment_and_places(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "first", CONFIG, torch.device("cpu"))
    assert run.path == tmp_path / "runs" / "first"
    made = {".lock", "checkpoints", "config.yaml", "environment.json", "figures", "tensorboard"}
    assert {*os.listdir(run.path)} - {"uncommitted.diff"} == made
    assert load_config(run.config_file) == CONFIG
    for folder in (run.checkpoints, run.tensorboard, run.figures):
        assert folder.is_dir()
    environment = json.loads(run.environment_file.read_text(encoding="utf-8"))
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["versions"]["numpy"] == np.__version__
    assert environment["device"].startswith("Using CPU: ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", environment["started"])
    assert environment["command"] == shlex.join(sys.orig_argv)


def test_a_run_that_goes_on_has_no_error_of_an_earlier_process(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.write_status("failed", error="out of memory")
    assert read_json(run.status_file)["error"] == "out of memory"
    run.write_status("training", training_step=3)
    assert read_json(run.status_file).keys() == {"state", "updated", "training_step"}


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "...", ".hidden", "7", "x" * 200])
def test_plain_words_are_names(tmp_path: Path, name: str) -> None:
    assert RunFolder.create(tmp_path, name, CONFIG).path.name == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a b", "a/b", "/a", "../a", "a\n", "ä", "-a", "a\0b", "$(a)", "x" * 201],
)
def test_other_names_are_refused_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"run name .*use up to 200 letters"):
        RunFolder.create(tmp_path / "runs", name, CONFIG)
    with pytest.raises(ConfigError):
        check_run_name(name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, lambda path: path.write_text("precious"), lambda path: path.symlink_to("nowhere")],
    ids=["folder", "file", "dangling link"],
)
def test_a_name_in_use_is_refused_and_left_as_it_is(tmp_path: Path, make) -> None:
    path = tmp_path / "t"
    make(path)
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(ConfigError) as caught:
        RunFolder.create(tmp_path, "t", CONFIG)
    assert str(path) in str(caught.value)
    assert f"marl_framework.history --runs {tmp_path} archive t" in str(caught.value)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_one_of_many_claims_gets_a_name(tmp_path: Path) -> None:
    def claim(_: int) -> bool:
        try:
            RunFolder.create(tmp_path / "runs", "t", CONFIG)
        except ConfigError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(claim, range(8))) == [False] * 7 + [True]
    assert os.listdir(tmp_path / "runs") == ["t"]


@pytest.mark.parametrize(
    ("title", "word"),
    [("two hills / north", "two-hills-north"), ("x" * 500, "x" * 100)]
    + [(title, "run") for title in ("..", "---", "日本")],
)
def test_runs_without_a_name_get_different_ones(tmp_path: Path, title: str, word: str) -> None:
    config = Config.model_validate({"experiment": {"title": title}})
    names = [RunFolder.create(tmp_path, None, config).path.name for _ in range(4)]
    assert len(set(names)) == 4
    for name in names:
        check_run_name(name)
        assert re.match(rf"{word}-\d{{8}}T\d{{6}}Z", name)


@pytest.mark.parametrize("directory", ["file", "file/below", "link", "a\0b"])
def test_a_place_that_is_no_folder_is_refused(tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"logging\.directory: .* cannot be written"):
        RunFolder.create(tmp_path / directory, "t", CONFIG)
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.parametrize("refused", ["runs", "t", "figures"])
def test_a_place_that_is_not_writable_is_refused(tmp_path, monkeypatch, refused: str) -> None:
    real_mkdir = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == refused:
            raise PermissionError(13, "Permission denied")
        real_mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(ConfigError, match=r"logging\.directory: .*: Permission denied"):
        RunFolder.create(tmp_path / "some" / "runs", "t", CONFIG)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failure", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_start_that_fails_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(folder_module, "write_json", Mock(side_effect=failure))
    expected = ConfigError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        RunFolder.create(tmp_path / "runs", "t", CONFIG)
    assert os.listdir(tmp_path) == []


def test_discard_removes_what_create_made_and_nothing_else(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "a" / "runs", "first", CONFIG)
    second = RunFolder.create(tmp_path / "a" / "runs", "second", CONFIG)
    first.discard()
    assert os.listdir(tmp_path / "a" / "runs") == ["second"]
    second.discard()
    assert os.listdir(tmp_path / "a") == ["runs"]  # the second did not make it

    alone = RunFolder.create(tmp_path / "b" / "runs", "t", CONFIG)
    alone.discard()
    assert not (tmp_path / "b").exists()


def test_the_summary_is_strict_json_with_numbers_in_one_line(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "t", CONFIG)
    values: dict[Any, tuple[Any, Any]] = {
        "best": (float("inf"), "inf"),
        "bad": ([float("nan"), np.float32("nan"), torch.tensor(-torch.inf)], [None, None, "-inf"]),
        "entropy": (torch.tensor([0.5, 0.25]), [0.5, 0.25]),
        "f1": (np.float64(0.125), 0.125),
        "steps": (np.int64(7), 7),
        "path": (Path("a/b"), "a/b"),
        3: ((1, None, True, "λ"), [1, None, True, "λ"]),
        "rows": ([[-1e-7, float("nan")], []], [[-1e-7, None], []]),
        "text": ("[\n1,  2\n]", "[\n1,  2\n]"),
    }
    results = {name: value for name, (value, _) in values.items()}
    run.write_summary(results, {"seconds": 1.5}, {"device": "cpu"})
    text = run.summary_file.read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {
        "results": {str(name): value for name, (_, value) in values.items()},
        "timing": {"seconds": 1.5},
        "machine": {"device": "cpu"},
    }
    assert '"entropy": [0.5, 0.25]' in text
    assert "[-1e-07, null]" in text


def test_a_summary_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "t", CONFIG)
    run.write_summary({"a": 1}, {}, {})
    before = sorted(os.listdir(run.path))
    with pytest.raises(TypeError, match="type object cannot be written as JSON"):
        run.write_summary({"a": object()}, {}, {})
    assert json.loads(run.summary_file.read_text(encoding="utf-8"))["results"] == {"a": 1}
    assert sorted(os.listdir(run.path)) == before


def git(folder: Path, *arguments: str) -> str:
    """Run git without the settings of this machine."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    git(checkout, "init", "--quiet")
    (checkout / "a").write_text("1", encoding="utf-8")
    git(checkout, "add", "a")
    git(checkout, "commit", "--quiet", "--message", "first")
    return checkout


def test_commit_and_uncommitted_changes_are_noted(checkout: Path) -> None:
    noted = describe_environment(checkout=checkout)
    assert noted["commit"] == git(checkout, "rev-parse", "HEAD")
    assert (noted["uncommitted_changes"], noted["untracked"]) == (False, [])
    (checkout / "a").write_text("2", encoding="utf-8")
    (checkout / "new.py").write_text("3", encoding="utf-8")
    noted = describe_environment(checkout=checkout)
    assert (noted["uncommitted_changes"], noted["untracked"]) == (True, ["new.py"])


def test_a_difference_is_whole_or_left_out(tmp_path: Path, checkout: Path) -> None:
    (checkout / "a").write_text("2", encoding="utf-8")
    write_environment(tmp_path, None, checkout)
    size = (tmp_path / "uncommitted.diff").stat().st_size
    assert read_json(tmp_path / "environment.json")["diff_left_out_bytes"] is None
    (tmp_path / "uncommitted.diff").unlink()
    write_environment(tmp_path, None, checkout, size - 1)
    assert not (tmp_path / "uncommitted.diff").exists()
    assert read_json(tmp_path / "environment.json")["diff_left_out_bytes"] == size


def test_a_repository_around_an_installation_is_not_taken_for_ours(checkout: Path) -> None:
    (checkout / "site-packages").mkdir()
    noted = describe_environment(checkout=checkout / "site-packages")
    assert (noted["commit"], noted["uncommitted_changes"]) == (None, None)


def test_a_machine_without_git_still_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=FileNotFoundError("git")))
    noted = describe_environment()
    assert (noted["commit"], noted["uncommitted_changes"]) == (None, None)


def test_a_folder_without_checkpoints_is_named_and_no_option(tmp_path: Path) -> None:
    """Several options and keys name such folders."""
    with pytest.raises(ConfigError, match="the folder has neither") as error:
        checkpoint_file(str(tmp_path))
    assert str(error.value).startswith(f"checkpoint {tmp_path}: the folder has neither")
