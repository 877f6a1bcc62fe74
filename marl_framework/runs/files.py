"""Names, files that appear whole or not at all, and locks that die with their process."""

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

from marl_framework.config.errors import ConfigError

LOCK = ".lock"
"""Name of the file in a run folder that a training holds locked."""
_TEMPORARY = ".tmp"
_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]{1,200}")


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


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only once it is complete and on disk.

    It is written under a temporary name in the same folder, flushed and renamed; after an error
    the temporary file is gone and an earlier file of that name is as it was.
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
    """Give a file a second name, replacing what had it; copies where links are not possible."""
    temporary = _temporary(path)
    with suppress(OSError):
        temporary.unlink()
    try:
        os.link(source, temporary)
        os.replace(temporary, path)
        if os.path.lexists(temporary):  # rename does nothing where both are one file already
            temporary.unlink()
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        with atomic_file(path) as file:
            file.write(source.read_bytes())
    _sync_folder(path.parent)


def remove_temporary_files(folder: Path) -> None:
    """Remove what a killed process left half-written; for the one who holds the lock."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        with suppress(OSError):
            path.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON, whole or not at all; numbers that are not finite become null."""
    text = json.dumps(_plain(content), indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as file:
        file.write(text.encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return what `write_json` wrote; empty where there is no such file or it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


class RunLock:
    """Holds a run folder for this process; the system frees it when the process ends.

    Args:
        folder: of the run.

    Raises:
        ConfigError: another process trains in it, or the lock file cannot be made.
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
            raise ConfigError(
                f"run name {folder.name}: a training of this name is under way"
                f"{f' ({holder})' if holder else ''}; wait for it, stop it or choose another name"
            ) from None
        except OSError:
            return  # a file system without locks; the making of the folder is the claim there
        with suppress(OSError):  # a full disk: the lock holds without a note
            os.truncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)

    def release(self) -> None:
        """Let others have the folder."""
        self._close()


def is_locked(folder: Path) -> bool:
    """Whether a process holds a run folder, this one included; changes nothing."""
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
    """Be the only process that makes or moves run folders here; held for moments."""
    handle = None
    with suppress(OSError):  # without locks the system's rename and mkdir still decide
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
    """Make a rename survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
