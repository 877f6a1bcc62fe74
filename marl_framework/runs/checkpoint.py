"""Checkpoint files: written whole or not at all, and read without running code."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file

__all__ = ["FORMAT", "atomic_file", "load_checkpoint", "misfit", "save_checkpoint"]

FORMAT = 1
"""Version of the layout; a file of another one is refused."""

# A checkpoint is a zip archive, and its comment holds the SHA-256 of all bytes before the digits:
# one file, so that content and checksum cannot part, and every reader of such archives takes it.
_MARK = b"sha256="
_COMMENT = len(_MARK) + 64
_END = b"PK\x05\x06"  # the record at an archive's end, whose last two bytes count the comment's
_END_BYTES = 22
_PLAIN = (type(None), bool, int, float, str, bytes)


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
        buffer = io.BytesIO()
        torch.save({**payload, "format": FORMAT}, buffer)
        file.write(_signed(buffer.getbuffer()))


def load_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; never runs code that a file might hold.

    Args:
        path: file that `save_checkpoint` wrote.
        device: where its tensors go. The CPU suits resuming: `load_state_dict` copies to where
            modules and optimisers live, and states of generators must be on the CPU.

    Raises:
        ConfigError: the file is missing, damaged (every bit is checked), no checkpoint, or of
            another format.
    """
    damaged = f"checkpoint {path}: it is damaged or no checkpoint; use an earlier one"
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no readable file"
        raise ConfigError(f"checkpoint {path}: cannot be read: {reason}") from error
    signed = _is_signed(content)
    if signed is False:
        raise ConfigError(damaged)
    try:
        payload = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"checkpoint {path}: refused: it is no checkpoint of plain tensors and numbers, "
            "and such a file could run code"
        ) from error
    except Exception as error:  # what a damaged file makes the readers raise is without bounds
        raise ConfigError(damaged) from error
    found = payload.get("format") if isinstance(payload, dict) else None
    if found is None:
        raise ConfigError(f"checkpoint {path}: it lacks the key format; it is no checkpoint")
    if type(found) is not int or found != FORMAT:
        raise ConfigError(
            f"checkpoint {path}: its format is {found!r}, and this version reads {FORMAT}"
        )
    if signed is None:
        raise ConfigError(f"checkpoint {path}: it lacks its checksum, so it may be damaged")
    return dict(payload)


def misfit(ours: Mapping[str, Any], saved: Mapping[Any, Any]) -> str | None:
    """Return where the tensors of a saved network differ in shape from ours; None: nowhere."""
    here = {name: _shape(value) for name, value in ours.items()}
    there = {str(name): _shape(value) for name, value in saved.items()}
    for name in here | there:
        if here.get(name) != there.get(name):
            return f"{name} is {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
    return None


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return "no tensor"
    return "x".join(str(length) for length in value.shape) or "a number"


def _signed(archive: memoryview) -> bytearray:
    """Return a zip archive with the checksum as its comment."""
    content = bytearray(archive)
    if content[-_END_BYTES : -_END_BYTES + 4] != _END:
        raise RuntimeError("torch.save wrote no plain zip archive")
    content[-2:] = struct.pack("<H", _COMMENT)
    content += _MARK
    content += hashlib.sha256(content).hexdigest().encode()
    return content


def _is_signed(content: bytes) -> bool | None:
    """Whether a file is as it was written; None where it has no checksum at all."""
    if content[-_COMMENT : -_COMMENT + len(_MARK)] != _MARK:
        return None
    digest = hashlib.sha256(memoryview(content)[:-64]).hexdigest()
    return content[-64:] == digest.encode()


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
