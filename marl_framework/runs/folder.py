"""The folder of one run: what was asked for, where it ran, and what came out."""

from __future__ import annotations

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

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import format_yaml
from marl_framework.device import describe_device
from marl_framework.runs.files import (
    LOCK,
    RunLock,
    atomic_file,
    check_run_name,
    folder_guard,
    read_json,
    remove_temporary_files,
    write_json,
)
from marl_framework.runs.log import LOG

_PACKAGES = ("torch", "kornia", "numpy")
_CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20
TRAINING_FOLDERS = ("checkpoints", "tensorboard", "figures")
"""What a training puts its files in."""
_LARGEST_DIFF = 2**24
_OURS = frozenset(
    {
        LOCK,
        *TRAINING_FOLDERS,
        "config.yaml",
        "environment.json",
        "uncommitted.diff",
        "status.json",
        "summary.json",
        LOG,
    }
)


@dataclass(frozen=True)
class RunFolder:
    """A folder `<logging.directory>/<run name>/` that belongs to this process.

    Attributes:
        path: the folder.
        made_parents: folders above it that had to be made for it, innermost first.
        lock: keeps other trainings out until `release` or the end of the process.
    """

    path: Path
    made_parents: tuple[Path, ...] = ()
    lock: RunLock | None = None

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
            with folder_guard(parent):
                path = _claim(parent, name, config.experiment.title)
                run = cls(path, parents, _lock_new(path))
        except BaseException:
            _remove_empty(parents)
            raise
        try:
            run._fill(config, device, folders)
        except BaseException as error:
            run.discard()
            if isinstance(error, OSError):
                raise _not_writable(path, error) from error
            raise
        return run

    @classmethod
    def take(cls, directory: Path | str, name: str) -> RunFolder | None:
        """Claim the folder of an earlier start, to go on with it; None where there is none.

        Raises:
            ConfigError: the name is not allowed, another training has the folder, or it is no
                run. Nothing was changed.
        """
        check_run_name(name)
        path = Path(directory) / name
        with folder_guard(Path(directory)):
            if not path.is_dir():
                return None
            ours = os.path.lexists(path / "config.yaml")
            if not ours and {entry for entry in os.listdir(path) if entry[0] != "."} - _OURS:
                raise ConfigError(f"run name {name}: {path} is no run; choose another name")
            return cls(path, (), RunLock(path))

    def prepare(self, config: Config, device: torch.device | None = None) -> None:
        """Make a taken folder whole: a start may have been killed at any moment.

        Args:
            config: written where the folder has none.
            device: as of `create`.
        """
        try:
            for folder in (self.path, self.checkpoints, self.figures):
                remove_temporary_files(folder)
            self._fill(config, device, TRAINING_FOLDERS)
        except OSError as error:
            raise _not_writable(self.path, error) from error

    def _fill(self, config: Config, device: torch.device | None, folders: Sequence[str]) -> None:
        for folder in folders:
            (self.path / folder).mkdir(exist_ok=True)
        if not self.environment_file.exists():
            write_json(self.environment_file, describe_environment(device))
            difference = _uncommitted()
            if difference:
                with suppress(OSError), atomic_file(self.path / "uncommitted.diff") as file:
                    file.write(difference)
        if not self.config_file.exists():
            self.write_config(config)  # last: a folder with a configuration is complete

    def write_config(self, config: Config) -> None:
        """Write `config.yaml`, whole or not at all."""
        with atomic_file(self.config_file) as file:
            file.write(format_yaml(config_to_dict(config)).encode())

    def note_resumption(self, training_step: int, changed: Mapping[str, Any]) -> None:
        """Add to `environment.json` that the training goes on here, and how.

        Args:
            training_step: of the checkpoint.
            changed: keys of the configuration that differ from then on, with their new values.
        """
        noted = read_json(self.environment_file)
        now = describe_environment()
        kept = {name: now[name] for name in ("command", "commit", "uncommitted_changes")}
        entry = {"time": now["started"], "training_step": training_step, "changed": changed, **kept}
        noted["resumed"] = [*noted.get("resumed", []), entry]
        with suppress(OSError):  # a full disk is no reason not to go on
            write_json(self.environment_file, noted)

    def write_status(self, state: str, **known: Any) -> None:
        """Update `status.json`: how far the training is; for the history, no reason to fail."""
        updated = datetime.now(UTC).isoformat(timespec="seconds")
        status = {**read_json(self.status_file), "state": state, "updated": updated, **known}
        with suppress(OSError):
            write_json(self.status_file, status)

    def release(self) -> None:
        """Let other trainings have the folder."""
        if self.lock is not None:
            self.lock.release()

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
    def status_file(self) -> Path:
        """How far the training is, see `write_status`."""
        return self.path / "status.json"

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
        write_json(self.summary, {"results": results, "timing": timing, "machine": machine})

    def discard(self) -> None:
        """Remove the folder again, and the ones made for it; for a start that fails."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()
        _remove_empty(self.made_parents)


def describe_environment(device: torch.device | None = None) -> dict[str, Any]:
    """Return what is needed to repeat a run: versions, commit, machine, command, time."""
    commit = (_git("rev-parse", "HEAD") or "").strip() if _is_own_checkout() else None
    changes = _git("status", "--porcelain") if commit else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "commit": commit or None,
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
        f"run name {name}: {parent / str(name)} exists; choose another name, continue it with "
        "--resume, or move it to training_history/ with --archive-earlier "
        f"(./train_with_backup.sh {name} does that)"
    )


def _lock_new(path: Path) -> RunLock:
    try:
        return RunLock(path)
    except BaseException as error:
        with suppress(OSError):
            path.rmdir()
        if isinstance(error, OSError):
            raise _not_writable(path, error) from error
        raise


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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _uncommitted() -> bytes:
    """What differs from the commit, as `git apply` reads it; empty without git or repository."""
    if not _is_own_checkout():
        return b""
    text = _git("diff", "HEAD", "--binary", "--no-ext-diff", "--no-color") or ""
    return text.encode(errors="surrogateescape")[:_LARGEST_DIFF]


def _is_own_checkout() -> bool:
    """Whether git's repository is this one, not one that an installation happens to lie in."""
    top = _git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.strip()).resolve() == _CHECKOUT


def _git(*arguments: str) -> str | None:
    """Output of a git command on the checkout; None without git or repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_CHECKOUT), *arguments],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout if done.returncode == 0 else None
