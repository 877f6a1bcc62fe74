"""Run folders, which hold configuration, environment, status and results of one run."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import format_yaml
from marl_framework.device import describe_device
from marl_framework.runs.files import atomic_file, read_json, remove_temporary_files, write_json
from marl_framework.runs.history import History
from marl_framework.runs.lock import LOCK, RunLock, folder_guard
from marl_framework.runs.log import LOG
from marl_framework.runs.names import check_run_name, name_in_use

CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20
INITIAL_WEIGHTS = "initial_weights"
"""Key of the record of a run's initial weights."""
TRAINING_FOLDERS = ("checkpoints", "tensorboard", "figures")
"""Subfolders of a training run."""
JOB = "job"
"""Key of the torchrun call that trains the run."""
_ENVIRONMENT = "environment.json"
_LARGEST_DIFF = 2**24  # bytes
_RUN_FILES = {LOCK, LOG, *TRAINING_FOLDERS, "config.yaml", _ENVIRONMENT, "uncommitted.diff"}
_RUN_FILES |= {"status.json", "summary.json"}


class RunFolder:
    """A folder `<logging.directory>/<run name>/` that this process owns.

    Args:
        path: path of the folder.
        lock: lock against other trainings, held until `release` or the end of the process.
        made_parents: parent folders that this process created, innermost first.

    Attributes:
        config_file: file of the resolved configuration, a valid params file.
        environment_file: file of versions, commit, machine and command; `describe_environment`.
        status_file: file of the training's progress, see `write_status`.
        summary_file: file of the results, see `write_summary`.
        checkpoints, tensorboard, figures: folders of checkpoints, event files and figures.
    """

    def __init__(self, path: Path, lock: RunLock, made_parents: tuple[Path, ...] = ()) -> None:
        self.path = path
        self._lock, self._made_parents = lock, made_parents
        self.config_file = path / "config.yaml"
        self.environment_file = path / _ENVIRONMENT
        self.status_file = path / "status.json"
        self.summary_file = path / "summary.json"
        self.checkpoints, self.tensorboard, self.figures = (path / n for n in TRAINING_FOLDERS)

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
            directory: folder of the runs (`logging.directory`); created if missing.
            name: run name; None to build one from `experiment.title` and the time.
            config: resolved configuration.
            device: device of the run.
            folders: subfolders to create.

        Raises:
            ConfigError: the name is invalid or in use, or the folder cannot be written; no
                files remain.
        """
        if name is not None:
            check_run_name(name)
        parent = Path(directory)
        parents = _make_parents(parent)
        with ExitStack() as undo:
            undo.callback(_remove_empty, parents)
            with folder_guard(parent):
                path = _claim_name(parent, name, config.experiment.title)
                undo.callback(shutil.rmtree, path, ignore_errors=True)
                run = cls(path, RunLock(path), parents)
            undo.callback(run.discard)
            try:
                run._fill(config, device, folders)
            except OSError as error:
                raise not_writable(path, error) from error
            undo.pop_all()
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
            is_run = os.path.lexists(path / "config.yaml")
            if not is_run and {file for file in os.listdir(path) if file[0] != "."} - _RUN_FILES:
                raise ConfigError(f"run name {name}: {path} is not a run; choose another name")
            return cls(path, RunLock(path))

    def _fill(self, config: Config, device: torch.device | None, folders: Sequence[str]) -> None:
        for folder in folders:
            (self.path / folder).mkdir(exist_ok=True)
        if not self.environment_file.exists():
            write_environment(self.path, device)
        text = format_yaml(config_to_dict(config)).encode()
        if not self.config_file.exists() or self.config_file.read_bytes() != text:
            with atomic_file(self.config_file) as file:  # last: this file marks a complete folder
                file.write(text)

    def release(self) -> None:
        """Release the lock of the folder."""
        self._lock.release()

    def resume(
        self, config: Config, device: torch.device, training_step: int, changed: Mapping[str, Any]
    ) -> None:
        """Record that the run is resumed; write its configuration and files that are missing.

        Args:
            config: configuration of the resumed run.
            device: device of the run.
            training_step: number of training steps in the checkpoint.
            changed: changed configuration keys with their new values.
        """
        try:
            self.summary_file.unlink(missing_ok=True)  # of a shorter training
            remove_temporary_files(self.path, self.checkpoints, self.figures)
            self._fill(config, device, TRAINING_FOLDERS)
        except OSError as error:
            raise not_writable(self.path, error) from error
        now = describe_environment()
        kept = {name: now[name] for name in ("command", "commit", "uncommitted_changes")}
        entry = {"time": now["started"], "training_step": training_step, "changed": changed, **kept}
        earlier = read_json(self.environment_file).get("resumed", [])
        self.note(resumed=[*earlier, entry])

    def note(self, **known: Any) -> None:
        """Add entries to `environment.json`; ignore write errors."""
        environment = {**read_json(self.environment_file), **known}
        with suppress(OSError):  # a full disk must not stop the training
            write_json(self.environment_file, environment)

    def write_status(self, state: str, **known: Any) -> None:
        """Update `status.json` with the progress of the training; ignore write errors."""
        updated = datetime.now(UTC).isoformat(timespec="seconds")
        status = {**read_json(self.status_file), "state": state, "updated": updated, **known}
        if "error" not in known:
            status.pop("error", None)  # of an earlier process
        with suppress(OSError):
            write_json(self.status_file, status)

    def write_summary(
        self, results: Mapping[str, Any], timing: Mapping[str, Any], machine: Mapping[str, Any]
    ) -> None:
        """Write `summary.json`; `results` depend only on configuration and seed."""
        write_json(self.summary_file, {"results": results, "timing": timing, "machine": machine})

    def discard(self) -> None:
        """Delete the folder and the parent folders created with it, after a failed start."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()
        _remove_empty(self._made_parents)


def start_run(
    config: Config,
    device: torch.device,
    name: str | None,
    *,
    archive_earlier: bool = False,
    folders: Sequence[str] = TRAINING_FOLDERS,
) -> RunFolder:
    """Create a run folder in `logging.directory`; see `RunFolder.create`.

    With `archive_earlier` an existing run of that name is moved to the archive first. Raises
    ConfigError if the name is invalid or in use, the existing run is in training or cannot be
    moved, or the folder cannot be written.
    """
    directory = Path(config.logging.directory)
    if archive_earlier and name is not None:
        moved = History(directory).archive(name)
        if moved is not None:
            print(f"The earlier run '{name}' is now in {moved}", flush=True)
    return RunFolder.create(directory, name, config, device, folders)


def job_of(run: Path) -> str | None:
    """Return the identifier of the torchrun call that started a run, or None."""
    return read_json(run / _ENVIRONMENT).get(JOB)


def describe_environment(
    device: torch.device | None = None, checkout: Path = CHECKOUT
) -> dict[str, Any]:
    """Return the data needed to reproduce a run: versions, commit, machine, command, time."""
    commit = (_git(checkout, "rev-parse", "HEAD") or "").strip() or None
    changes = _git(checkout, "status", "--porcelain") if commit else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "commit": commit,
        "uncommitted_changes": None if changes is None else bool(changes),
        "untracked": [line[3:] for line in (changes or "").splitlines() if line[:2] == "??"],
        "device": None if device is None else describe_device(device),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in ("marl_framework", "kornia", "numpy")}
        | {"torch": str(torch.__version__)},  # names its CUDA too
    }


def write_environment(
    folder: Path,
    device: torch.device | None,
    checkout: Path = CHECKOUT,
    largest_diff: int = _LARGEST_DIFF,
) -> None:
    """Write `environment.json`, and `uncommitted.diff` if at most `largest_diff` [bytes]."""
    text = _git(checkout, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color") or ""
    diff = text.encode(errors="surrogateescape")
    omitted_bytes = len(diff) if len(diff) > largest_diff else None
    environment = describe_environment(device, checkout)
    write_json(folder / _ENVIRONMENT, {**environment, "diff_left_out_bytes": omitted_bytes})
    if diff and omitted_bytes is None:
        with suppress(OSError), atomic_file(folder / "uncommitted.diff") as file:
            file.write(diff)


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


def _claim_name(parent: Path, name: str | None, title: str) -> Path:
    """Create the run folder; mkdir is atomic, so only one process gets the name."""
    names: Iterable[str] = [str(name)]
    if name is None:
        word = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.")[:100] or "run"
        base = f"{word}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        names = chain([base], (f"{base}-{number}" for number in count(2)))
    for candidate in names:
        try:
            (parent / candidate).mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise not_writable(parent / candidate, error) from error
        return parent / candidate
    raise name_in_use(parent / str(name))


def not_writable(path: Path, error: Exception) -> ConfigError:
    """Build the error for a run folder that cannot be written."""
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(
        f"logging.directory: {path} cannot be written: {reason}; choose a writable folder"
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


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if git fails or `checkout` is not a repository."""
    if not (checkout / ".git").exists():  # git would use a parent's repository
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout if done.returncode == 0 else None
