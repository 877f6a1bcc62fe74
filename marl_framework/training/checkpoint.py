"""Checkpoint files: written whole or not at all, and read without running code."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from marl_framework.config_io import ConfigError

FORMAT = 1
"""Version of the layout; a file of another one is refused."""

_PLAIN = (type(None), bool, int, float, str, bytes)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only once it is complete and on disk.

    It is written under a temporary name in the same folder, flushed and renamed; after an error
    the temporary file is gone and an earlier file of that name is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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


def save_checkpoint(path: Path | str, payload: Mapping[str, Any]) -> None:
    """Write a checkpoint that `load_checkpoint` can read; adds the key `format`.

    Args:
        path: file to write or replace; its folder exists.
        payload: tensors, numbers, texts and None, in any nesting of dict, list and tuple.

    Raises:
        TypeError: a value is something else; names its key.
        OSError, RuntimeError: the file could not be written; an earlier one is intact.
    """
    _check_plain(payload, "payload")
    with atomic_file(Path(path)) as file:
        torch.save({**payload, "format": FORMAT}, file)


def load_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; never runs code that a file might hold.

    Args:
        path: file that `save_checkpoint` wrote.
        device: where its tensors go. The CPU suits resuming: `load_state_dict` copies to where
            modules and optimisers live, and states of generators must be on the CPU.

    Raises:
        ConfigError: the file is missing, damaged, no checkpoint, or of another format.
    """
    try:
        payload = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        reason = error.strerror or "no readable file"
        raise ConfigError(f"checkpoint {path}: cannot be read: {reason}") from error
    except torch.OutOfMemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"checkpoint {path}: refused: it is no checkpoint of plain tensors and numbers, "
            "and such a file could run code"
        ) from error
    except Exception as error:  # what a damaged file makes the readers raise is without bounds
        raise ConfigError(
            f"checkpoint {path}: it is damaged or no checkpoint; use an earlier one"
        ) from error
    found = payload.get("format") if isinstance(payload, dict) else None
    if found is None:
        raise ConfigError(f"checkpoint {path}: it lacks the key format; it is no checkpoint")
    if type(found) is not int or found != FORMAT:
        raise ConfigError(
            f"checkpoint {path}: its format is {found!r}, and this version reads {FORMAT}"
        )
    return dict(payload)


def _check_plain(value: Any, where: str) -> None:
    """Find now what `weights_only` would refuse when the checkpoint is needed."""
    if isinstance(value, Tensor) or type(value) in _PLAIN:  # not isinstance: numpy's float64
        return
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]")
    else:
        raise TypeError(
            f"{where} is a {type(value).__name__}; "
            "a checkpoint holds tensors, numbers and texts in dicts, lists and tuples"
        )


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
