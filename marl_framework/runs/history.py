"""Archive, find and delete runs.

Archived runs are stored in `training_history/<run name>/<UTC time>/`, next to the folder of the
runs. Their `metadata.json` records configuration, commit, versions, start, end and last metrics.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import read_json, write_json
from marl_framework.runs.lock import RunLock, folder_guard, is_locked
from marl_framework.runs.names import check_run_name, is_run_name
from marl_framework.runs.process import is_alive

_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z(-[0-9]+)?")
_METADATA = "metadata.json"
_FOLDER = "training_history"


class History:
    """Current and archived runs of a folder.

    `runs` is the folder of the runs (`logging.directory`).
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.folder = Path(os.path.abspath(runs)).parent / _FOLDER  # also for `..`

    def names(self) -> list[str]:
        """Return the names of all runs, including archived ones."""
        runs = (path for path in _folders(self.runs) if (path / "status.json").is_file())
        names = {path.name for path in (*_folders(self.folder), *runs)}
        return sorted(filter(is_run_name, names))  # skip copied folders with invalid names

    def stamps(self, name: str) -> list[str]:
        """Return the times of the archived runs with this name, oldest first."""
        check_run_name(name)
        stamps = [p.name for p in _folders(self.folder / name) if _STAMP.fullmatch(p.name)]
        return sorted(stamps, key=_stamp_key)

    def check(self, name: str) -> None:
        """Check that a current or archived run has this name.

        Raises ConfigError if no run has this name.
        """
        if not self.stamps(name):
            self.find(name)

    def find(self, text: str) -> Path:
        """Return the folder of a run.

        `text` is `name`, for the current run or else the newest archived one, or `name/time`.
        Raises ConfigError if the run does not exist.
        """
        name, slash, stamp = text.partition("/")
        stamps = self.stamps(name)
        if not slash:
            if (self.runs / name).is_dir():
                return self.runs / name
            if stamps:
                return self.folder / name / stamps[-1]
            raise ConfigError(f"{name}: no run of this name in {self.runs} or {self.folder}")
        if stamp not in stamps:
            known = ", ".join(stamps[-5:]) or "none"
            raise ConfigError(
                f"{text}: no such archived run; newest runs in {self.folder / name}: {known}"
            )
        return self.folder / name / stamp

    def archive(self, name: str) -> Path | None:
        """Move a run to the archive; return its new folder, or None without a run.

        Raises ConfigError if the run is in training or cannot be moved; it stays where it was.
        """
        check_run_name(name)
        source = self.runs / name
        with folder_guard(self.runs):
            if not os.path.lexists(source):
                return None
            lock = RunLock(source) if source.is_dir() else None  # may be a file or a broken link
            try:
                return self._move_away(source)
            finally:
                if lock is not None:
                    lock.release()

    def clean(self, name: str, keep: int) -> list[Path]:
        """Delete archived runs except the newest `keep`; ignore links. Return deleted folders."""
        archived = [self.folder / name / stamp for stamp in self.stamps(name)]
        folders = [path for path in archived if not path.is_symlink()]
        old = folders[: max(len(folders) - keep, 0)]
        for path in old:
            shutil.rmtree(path)
        return old

    def _move_away(self, source: Path) -> Path:
        folder = self.folder / source.name
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        target, copy = folder / stamp, 1
        while os.path.lexists(target):
            copy += 1
            target = folder / f"{stamp}-{copy}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                write_json(source / _METADATA, describe_run(source))
            _move(source, target)
        except OSError as error:
            reason = error.strerror or error  # shutil.Error has no strerror
            raise ConfigError(f"cannot move {source} to {target}: {reason}") from error
        return target


def describe_run(run: Path) -> dict[str, Any]:
    """Return the metadata of a run: configuration, commit, versions, times, state and metrics."""
    environment = read_json(run / "environment.json")
    status, results = read_json(run / "status.json"), read_json(run / "summary.json", "results")
    state = status.get("state", "unknown")
    is_archived = run.parent.parent.name == _FOLDER  # a current run's name may look like a time
    return {
        "name": run.parent.name if is_archived else run.name,
        "state": "killed" if state == "training" else state,  # the process has ended
        "started": environment.get("started"),
        "ended": _end_of(run, status),
        "resumed": environment.get("resumed", []),
        "command": environment.get("command"),
        "commit": environment.get("commit"),
        "uncommitted_changes": environment.get("uncommitted_changes"),
        "uncommitted_diff": "uncommitted.diff" if (run / "uncommitted.diff").exists() else None,
        "versions": environment.get("versions", {}),
        "device": environment.get("device"),
        "configuration": "config.yaml" if (run / "config.yaml").exists() else None,
        "training_step": results.get("training_steps", status.get("training_step")),
        **{
            name: read_json(run / "summary.json", "results", name)
            or read_json(run / "status.json", name)
            for name in ("last", "best")
        },
    }


def _end_of(run: Path, status: dict[str, Any]) -> str:
    """Return the recorded end; for a killed or running training, when it last wrote a file.

    Only files of the training count, because later evaluations may be in subfolders of the run.
    """
    if status.get("state") != "training" and isinstance(status.get("updated"), str):
        return status["updated"]
    files = [run / name for name in ("config.yaml", "environment.json", "status.json", "train.log")]
    files += [path for name in ("checkpoints", "tensorboard") for path in (run / name).glob("*")]
    times = []
    for path in files:
        with suppress(OSError):  # missing, or replaced by a running training
            times.append(path.stat().st_mtime)
    newest = max(times, default=run.stat().st_mtime)
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")


def state_of(run: Path) -> str:
    """Return the state of a run: "in training", "killed", or the last recorded state."""
    state = str(read_json(run / "status.json").get("state", "unknown"))
    process = read_json(run / "status.json", "process")
    alive = is_alive(process)
    if is_locked(run) or (state == "training" and alive):  # some file systems lack locks
        return "in training"
    if state != "training":
        return state
    elsewhere = alive is None and "host" in process
    return f"killed, or in training on {process['host']}" if elsewhere else "killed"


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.is_dir()]


def _stamp_key(stamp: str) -> tuple[str, int]:
    """Return a sort key that orders runs archived in the same second by number, not as text."""
    time, _, copy = stamp.partition("-")
    return time, int(copy or 1)


def _move(source: Path, target: Path) -> None:
    """Move a folder or link, also across file systems; `target` appears only when complete."""
    if source.is_symlink():
        target.symlink_to(source.resolve())  # a relative link would break at the new location
        source.unlink()
        return
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copytree(source, copy, symlinks=True)
            os.rename(copy, target)
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
        shutil.rmtree(source)
