"""The folder of one run: what was asked for, where it ran, and what came out."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import torch

from marl_framework.config import Config
from marl_framework.config_io import ConfigError, dump_config
from marl_framework.device import describe_device
from marl_framework.training.checkpoint import atomic_file

_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]{1,200}")
_PACKAGES = ("torch", "kornia", "numpy")
_CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20
TRAINING_FOLDERS = ("checkpoints", "tensorboard", "figures")
"""What a training puts its files in."""


@dataclass(frozen=True)
class RunFolder:
    """A folder `<logging.directory>/<run name>/` that belongs to this process.

    Attributes:
        path: the folder.
        made_parents: folders above it that had to be made for it, innermost first.
    """

    path: Path
    made_parents: tuple[Path, ...] = ()

    @classmethod
    def create(
        cls,
        directory: Path | str,
        name: str | None,
        config: Config,
        device: torch.device | None = None,
        folders: Sequence[str] = TRAINING_FOLDERS,
    ) -> RunFolder:
        """Claim a new folder and write `config.yaml` and `environment.json` into it.

        Args:
            directory: `logging.directory`; made where it is missing.
            name: run name; None for one from the title and the time.
            config: resolved configuration.
            device: where the run computes, for `environment.json`.
            folders: to be made in it.

        Raises:
            ConfigError: the name is not allowed or in use, or the folder cannot be written.
                Nothing is left behind.
        """
        if name is not None:
            check_run_name(name)
        parent = Path(directory)
        parents = _make_parents(parent)
        try:
            path = _claim(parent, name, config.experiment.title)
        except BaseException:
            _remove_empty(parents)
            raise
        run = cls(path, parents)
        try:
            for folder in folders:
                (path / folder).mkdir()
            dump_config(config, run.config_file)
            _write_json(run.environment_file, describe_environment(device))
        except BaseException as error:
            run.discard()
            if isinstance(error, OSError):
                raise _not_writable(path, error) from error
            raise
        return run

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The resolved configuration; a params file."""
        return self.path / "config.yaml"

    @property
    def environment_file(self) -> Path:
        """Versions, commit, machine and command line of the start."""
        return self.path / "environment.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of `last.pt` and `best.pt`."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def figures(self) -> Path:
        """Folder of pictures."""
        return self.path / "figures"

    @property
    def summary(self) -> Path:
        """What came out, see `write_summary`."""
        return self.path / "summary.json"

    def write_summary(
        self,
        results: Mapping[str, Any],
        timing: Mapping[str, Any],
        machine: Mapping[str, Any],
    ) -> None:
        """Write `summary.json`, whole or not at all.

        Args:
            results: figures that configuration and seed alone decide.
            timing: what the clock says.
            machine: what it ran on.

        Values are numbers, texts, lists, dicts, tensors and arrays. A number that is not finite
        becomes null: strict JSON has no word for it.
        """
        _write_json(self.summary, {"results": results, "timing": timing, "machine": machine})

    def discard(self) -> None:
        """Remove the folder again, and the ones made for it; for a start that fails."""
        shutil.rmtree(self.path, ignore_errors=True)
        _remove_empty(self.made_parents)


def check_run_name(name: str) -> None:
    """Check that a run name is one plain word.

    Raises:
        ConfigError: it is not; says what a name may hold.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigError(
            f"run name {name!r}: use up to 200 letters, digits, '.', '_', '-'; "
            "not '.', '..' or a leading '-'"
        )


def describe_environment(device: torch.device | None = None) -> dict[str, Any]:
    """Return what is needed to repeat a run: versions, commit, machine, command, time."""
    commit = _git("rev-parse", "HEAD") if _is_own_checkout() else None
    changes = _git("status", "--porcelain") if commit else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "commit": commit,
        "uncommitted_changes": None if changes is None else bool(changes),
        "device": None if device is None else describe_device(device),
        "platform": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "marl_framework": _version("marl_framework"),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def _make_parents(directory: Path) -> tuple[Path, ...]:
    """Make a folder and those above it; return the ones made, innermost first."""
    made: list[Path] = []
    try:
        missing = [p for p in (directory, *directory.parents) if not os.path.lexists(p)]
        for folder in reversed(missing):
            with suppress(FileExistsError):  # another start was quicker
                folder.mkdir()
                made.insert(0, folder)
        if not directory.is_dir():
            raise NotADirectoryError(0, "Not a directory")
    except (OSError, ValueError) as error:
        _remove_empty(tuple(made))
        raise _not_writable(directory, error) from error
    return tuple(made)


def _claim(parent: Path, name: str | None, title: str) -> Path:
    """Make the run's folder; its making is the claim, so only one process gets a name."""
    for candidate in _candidates(title) if name is None else iter([name]):
        try:
            (parent / candidate).mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_writable(parent / candidate, error) from error
        return parent / candidate
    raise ConfigError(
        f"run name {name}: {parent / str(name)} exists; choose another name, or use "
        f"./train_with_backup.sh {name}, which keeps the earlier run in training_history/"
    )


def _candidates(title: str) -> Iterator[str]:
    """Endless names from title and time."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.")[:100] or "run"
    base = f"{word}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    yield base
    for number in count(2):
        yield f"{base}-{number}"


def _not_writable(path: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(
        f"logging.directory: {path} cannot be written: {reason}; name a folder where you may write"
    )


def _remove_empty(folders: tuple[Path, ...]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(_plain(content), indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as file:
        file.write(text.encode() + b"\n")


def _plain(value: Any) -> Any:
    """Turn a value into what strict JSON can hold."""
    if hasattr(value, "tolist"):  # tensors, arrays and numpy's numbers
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no place in a JSON file")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_own_checkout() -> bool:
    """Whether git's repository is this one, not one that an installation happens to lie in."""
    top = _git("rev-parse", "--show-toplevel")
    return top is not None and Path(top).resolve() == _CHECKOUT


def _git(*arguments: str) -> str | None:
    """Output of a git command on the checkout; None without git or repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_CHECKOUT), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
