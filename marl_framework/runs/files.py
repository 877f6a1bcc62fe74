"""Atomic file writes, and JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_TEMPORARY = ".tmp"
_NUMBERS = re.compile(r"\[\n([-+\d.e,nul\s]*)\]")
"""List of numbers and nulls over several lines; strings of JSON have no line breaks."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` only when complete and on disk.

    The file is written under a temporary name in the same folder, flushed and renamed. After an
    error the temporary file is removed and an existing file at `path` is unchanged.
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
    """Hard link `source` to `path`, replacing an existing file; copy if links are impossible."""
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


def remove_temporary_files(*folders: Path) -> None:
    """Remove incomplete files of killed processes; call only while holding the run's lock."""
    for path in (path for folder in folders for path in folder.glob(f".*{_TEMPORARY}")):
        with suppress(OSError):
            path.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON atomically, see `strict`; lists of numbers take one line each."""
    text = json.dumps(strict(content), indent=1, allow_nan=False, ensure_ascii=False)
    text = _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    with atomic_file(path) as file:
        file.write(text.encode() + b"\n")


def strict(value: Any) -> Any:
    """Convert a value to types of strict JSON.

    NaN becomes None, infinities become the strings "inf" and "-inf", tensors and arrays lists.
    Raises TypeError if a value cannot be written as JSON.
    """
    if hasattr(value, "tolist"):  # tensors, arrays and NumPy scalars
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
    raise TypeError(f"values of type {type(value).__name__} cannot be written as JSON")


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Return the object at these nested keys of a JSON file; empty if missing or unreadable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


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
