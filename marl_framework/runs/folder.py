"""Run folders: configuration, environment, status and results of one run."""

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
from marl_framework.runs.files import atomic_file, read_json, remove_temporary_files, write_json
from marl_framework.runs.lock import LOCK, RunLock, folder_guard
from marl_framework.runs.log import LOG
from marl_framework.runs.names import check_run_name, name_in_use

_PACKAGES = ("torch", "kornia", "numpy")
_CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20
INITIAL_WEIGHTS = "initial_weights"
"""Key of records of what a training run started with."""
TRAINING_FOLDERS = ("checkpoints", "tensorboard", "figures")
"""Subfolders of a training run."""
_LARGEST_DIFF = 2**24  # bytes
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
    """A folder `<logging.directory>/<run name>/` that this process owns."""

    path: Path
    made_parents: tuple[Path, ...] = ()
    """Parent folders that were created for it, innermost first."""
    lock: RunLock | None = None
    """Excludes other trainings until `release` or the end of the process."""

    @classmethod
    def create(
        cls,
        directory: Path | str,
        name: str | None,
        config: Config,
        device: torch.device | None = None,
        folders: Sequence[str] = TRAINING_FOLDERS,
    ) -> RunFolder:
        """Create a run folder with `config.yaml` and `environment.json`.

        Args:
            directory: `logging.directory`; created if it is missing.
            name: run name; None for a name from the title and the time.
            config: resolved configuration.
            device: device of the run, for `environment.json`.
            folders: subfolders to create.

        Raises:
            ConfigError: the name is invalid or in use, or the folder cannot be written. Nothing
                is left behind.
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
                raise not_writable(path, error) from error
            raise
        return run

    @classmethod
    def take(cls, directory: Path | str, name: str) -> RunFolder | None:
        """Lock an existing run folder to resume its training; return None if it does not exist.

        Raises:
            ConfigError: the name is invalid, another training uses the folder, or it is not a
                run folder. Nothing was changed.
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
        """Complete a folder from `take`, whose earlier start may have been killed at any time.

        Args:
            config: configuration to write if the folder has none.
            device: device of the run.
        """
        try:
            for folder in (self.path, self.checkpoints, self.figures):
                remove_temporary_files(folder)
            self._fill(config, device, TRAINING_FOLDERS)
        except OSError as error:
            raise not_writable(self.path, error) from error

    def _fill(self, config: Config, device: torch.device | None, folders: Sequence[str]) -> None:
        for folder in folders:
            (self.path / folder).mkdir(exist_ok=True)
        if not self.environment_file.exists():
            difference = _uncommitted()
            left_out = len(difference) if len(difference) > _LARGEST_DIFF else None
            environment = describe_environment(device)
            write_json(self.environment_file, {**environment, "diff_left_out_bytes": left_out})
            if difference and left_out is None:
                with suppress(OSError), atomic_file(self.path / "uncommitted.diff") as file:
                    file.write(difference)
        if not self.config_file.exists():
            self.write_config(config)  # last, as it marks a complete folder

    def write_config(self, config: Config) -> None:
        """Write `config.yaml` atomically."""
        with atomic_file(self.config_file) as file:
            file.write(format_yaml(config_to_dict(config)).encode())

    def note_resumption(self, training_step: int, changed: Mapping[str, Any]) -> None:
        """Record in `environment.json` that the training was resumed.

        Args:
            training_step: training step of the checkpoint.
            changed: changed configuration keys with their new values.
        """
        now = describe_environment()
        kept = {name: now[name] for name in ("command", "commit", "uncommitted_changes")}
        entry = {"time": now["started"], "training_step": training_step, "changed": changed, **kept}
        earlier = read_json(self.environment_file).get("resumed", [])
        self.note(resumed=[*earlier, entry])

    def note(self, **known: Any) -> None:
        """Add to `environment.json`; ignore write errors."""
        noted = {**read_json(self.environment_file), **known}
        with suppress(OSError):  # a full disk must not stop the training
            write_json(self.environment_file, noted)

    def write_status(self, state: str, **known: Any) -> None:
        """Update `status.json` with the progress of the training; ignore write errors."""
        updated = datetime.now(UTC).isoformat(timespec="seconds")
        status = {**read_json(self.status_file), "state": state, "updated": updated, **known}
        with suppress(OSError):
            write_json(self.status_file, status)

    def release(self) -> None:
        """Release the lock of the folder."""
        if self.lock is not None:
            self.lock.release()

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """Resolved configuration, a valid params file."""
        return self.path / "config.yaml"

    @property
    def environment_file(self) -> Path:
        """Versions, commit, machine and command line, see `describe_environment`."""
        return self.path / "environment.json"

    @property
    def status_file(self) -> Path:
        """Progress of the training, see `write_status`."""
        return self.path / "status.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def figures(self) -> Path:
        """Folder of figures."""
        return self.path / "figures"

    @property
    def summary_file(self) -> Path:
        """Results, see `write_summary`."""
        return self.path / "summary.json"

    def write_summary(
        self,
        results: Mapping[str, Any],
        timing: Mapping[str, Any],
        machine: Mapping[str, Any],
    ) -> None:
        """Write `summary.json` atomically.

        Values are numbers, strings, lists, dicts, tensors and arrays; for numbers that are not
        finite see `files.strict`.

        Args:
            results: results that depend on configuration and seed only.
            timing: durations.
            machine: hardware and software of the run.
        """
        write_json(self.summary_file, {"results": results, "timing": timing, "machine": machine})

    def discard(self) -> None:
        """Delete the folder and the parents created for it, after a failed start."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()
        _remove_empty(self.made_parents)


def describe_environment(device: torch.device | None = None) -> dict[str, Any]:
    """Return the data needed to reproduce a run: versions, commit, machine, command, time."""
    commit = (_git("rev-parse", "HEAD") or "").strip() if _is_own_checkout() else None
    changes = _git("status", "--porcelain") if commit else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "commit": commit or None,
        "uncommitted_changes": None if changes is None else bool(changes),
        "untracked": [line[3:] for line in (changes or "").splitlines() if line[:2] == "??"],
        "device": None if device is None else describe_device(device),
        "platform": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "marl_framework": _version("marl_framework"),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def _make_parents(directory: Path) -> tuple[Path, ...]:
    """Create a folder and its parents; return the created ones, innermost first."""
    made: list[Path] = []
    try:
        missing = [p for p in (directory, *directory.parents) if not os.path.lexists(p)]
        for folder in reversed(missing):
            with suppress(FileExistsError):  # another process created it
                folder.mkdir()
                made.insert(0, folder)
        if not directory.is_dir():
            raise NotADirectoryError(0, "Not a directory")
    except (OSError, ValueError) as error:
        _remove_empty(tuple(made))
        raise not_writable(directory, error) from error
    return tuple(made)


def _claim(parent: Path, name: str | None, title: str) -> Path:
    """Create the run folder; mkdir is atomic, so only one process gets a name."""
    for candidate in _candidates(title) if name is None else iter([name]):
        try:
            (parent / candidate).mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise not_writable(parent / candidate, error) from error
        return parent / candidate
    raise name_in_use(parent / str(name))


def _lock_new(path: Path) -> RunLock:
    try:
        return RunLock(path)
    except BaseException as error:
        with suppress(OSError):
            path.rmdir()
        if isinstance(error, OSError):
            raise not_writable(path, error) from error
        raise


def _candidates(title: str) -> Iterator[str]:
    """Yield run names from title and time, without end."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.")[:100] or "run"
    base = f"{word}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    yield base
    for number in count(2):
        yield f"{base}-{number}"


def not_writable(path: Path, error: Exception) -> ConfigError:
    """Return the error that a run folder cannot be written."""
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
    """Return the uncommitted changes of tracked files as a patch; empty without a repository."""
    if not _is_own_checkout():
        return b""
    text = _git("diff", "HEAD", "--binary", "--no-ext-diff", "--no-color") or ""
    return text.encode(errors="surrogateescape")


def _is_own_checkout() -> bool:
    """Return whether the package is in its own repository, not installed inside another one."""
    top = _git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.strip()).resolve() == _CHECKOUT


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in the checkout; None without git or a repository."""
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
