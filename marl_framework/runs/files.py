"""Run names, atomic file writes, and locks that end with their process."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from marl_framework.config.errors import ConfigError, found_at
from marl_framework.runs.process import is_alive

LOCK = ".lock"
"""File in a run folder that the training process locks."""
PRETRAINED = "pretrained:"
"""Before the name of a checkpoint that comes with the library."""
_SHIPPED = Path(__file__).parents[1] / "pretrained"
_TEMPORARY = ".tmp"
_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]{1,200}")


def check_run_name(name: str) -> None:
    """Check a run name.

    Raises:
        ConfigError: the name is too long or contains forbidden characters.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigError(
            f"run name {name!r}: use up to 200 letters, digits, '.', '_', '-'; "
            "not '.', '..' or a leading '-'"
        )


def name_in_use(path: Path) -> ConfigError:
    """Return the error that a run folder, or something else in its place, exists."""
    return ConfigError(
        f"run name {path.name}: {path} exists; choose another name, "
        f"{'continue a training with --resume, ' if (path / 'checkpoints').exists() else ''}"
        f"or move the run away with python -m marl_framework.history --runs {path.parent} archive "
        f"{path.name}"
    )


def check_checkpoint(option: str, name: str) -> None:
    """Check that the checkpoint that an option names is there.

    Raises:
        ConfigError: there is none; the message begins with the option.
    """
    with found_at(option):
        checkpoint_file(name)


def checkpoint_file(name: str) -> Path:
    """Return a checkpoint file.

    Args:
        name: the file, a run folder, whose best or else last checkpoint it is, or
            `pretrained:NAME`.

    Raises:
        ConfigError: there is none.
    """
    if name.startswith(PRETRAINED):
        return _pretrained(name)
    if not name:
        raise ConfigError("checkpoint: its name is empty; give a run folder or a checkpoint file")
    path = Path(name)
    if path.is_dir():
        candidates = [path / "checkpoints" / file for file in ("best.pt", "last.pt")]
        found = [file for file in candidates if file.is_file()]
        if not found:
            raise ConfigError(
                f"checkpoint {name}: the folder has neither checkpoints/best.pt nor "
                "checkpoints/last.pt; give a run folder or a checkpoint file"
            )
        return found[0]
    try:
        path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no readable file"
        raise ConfigError(f"checkpoint {path}: cannot be read: {reason}") from error
    return path


def checkpoint_name(path: Path) -> str:
    """Return what `checkpoint_file` finds a checkpoint by, on other machines too if it can."""
    return PRETRAINED + path.stem if path.parent == _SHIPPED else str(path)


def _pretrained(name: str) -> Path:
    shipped = {PRETRAINED + path.stem: path for path in sorted(_SHIPPED.glob("*.pt"))}
    if name not in shipped:
        raise ConfigError(f"checkpoint {name}: there is none; there are {', '.join(shipped)}")
    return shipped[name]


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` only when it is complete and on disk.

    It is written under a temporary name in the same folder, flushed and renamed. After an error
    the temporary file is removed and an existing file at `path` is unchanged.
    """
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def link_file(source: Path, path: Path) -> None:
    """Hard link `source` at `path`, replacing an existing file; copy it if links are impossible."""
    temporary = _temporary(path)
    with suppress(OSError):
        temporary.unlink()
    try:
        os.link(source, temporary)
        os.replace(temporary, path)
        if os.path.lexists(temporary):  # rename does nothing if both are the same file
            temporary.unlink()
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        with atomic_file(path) as file:
            file.write(source.read_bytes())
    _sync_folder(path.parent)


def remove_temporary_files(folder: Path) -> None:
    """Remove incomplete files of killed processes; call it only while holding the lock."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        with suppress(OSError):
            path.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON atomically, see `strict`."""
    text = json.dumps(strict(content), indent=1, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as file:
        file.write(text.encode() + b"\n")


def strict(value: Any) -> Any:
    """Return a value in types of strict JSON.

    NaN becomes None, infinities the texts "inf" and "-inf"; tensors and arrays become lists.

    Raises:
        TypeError: a value has no place in JSON.
    """
    if hasattr(value, "tolist"):  # tensors, arrays and numpy's numbers
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no place in a JSON file")


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Return the object below these keys of a JSON file.

    It is empty where the file is missing or damaged, or holds no object there.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


class RunLock:
    """Locks a run folder for this process; the system releases the lock when the process ends.

    Args:
        folder: run folder.

    Raises:
        ConfigError: another process holds the lock, or the lock file cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be opened: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 100, 0).decode(errors="replace").strip()
            self.release()
            raise _under_way(folder, holder) from None
        except OSError:  # no locks on this file system: only a live process can be known
            process = read_json(folder / "status.json", "process")
            training = read_json(folder / "status.json").get("state") == "training"
            if training and is_alive(process):
                self.release()
                raise _under_way(folder, f"process {process['number']}") from None
            return
        with suppress(OSError):  # on a full disk the lock works without this note
            os.truncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        self._close()


def _under_way(folder: Path, holder: str) -> ConfigError:
    return ConfigError(
        f"run name {folder.name}: a training run of this name is under way"
        f"{f' ({holder})' if holder else ''}; wait for it, stop it or choose another name"
    )


def is_locked(folder: Path) -> bool:
    """Return whether any process, including this one, holds the lock of a run folder."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def folder_guard(folder: Path) -> Iterator[None]:
    """Lock a folder of runs briefly, while run folders in it are created or moved."""
    handle = None
    with suppress(OSError):  # without locks, rename and mkdir are still atomic
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")


def _sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a rename survives a power failure."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
