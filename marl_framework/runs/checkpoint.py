"""Checkpoint files: written atomically, verified by checksum, and loaded without running code."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file

FORMAT = 1
"""Version of the file format; files of another version are rejected."""

# A checkpoint is a zip archive whose comment ends with the SHA-256 of all bytes before the digest.
# Content and checksum share one file, which any zip program can open.
_MARK = b"sha256="
_COMMENT = len(_MARK) + 64
_END = b"PK\x05\x06"  # end record of a zip archive; ends with the comment's length (two bytes)
_END_BYTES = 22
_PLAIN = (type(None), bool, int, float, str, bytes)


def save_checkpoint(path: Path | str, payload: Mapping[str, Any]) -> None:
    """Write a checkpoint for `load_checkpoint`; add the key `format`.

    Args:
        path: file to write or replace, in an existing folder.
        payload: tensors, numbers, strings and None in nested dicts, lists and tuples.

    Raises:
        TypeError: the payload contains a value of another type.
        OSError, RuntimeError: the file could not be written; an existing file is unchanged.
    """
    check_plain(payload, "payload")
    with atomic_file(Path(path)) as file:
        buffer = io.BytesIO()
        torch.save({**payload, "format": FORMAT}, buffer)
        content = bytearray(buffer.getbuffer())
        if content[-_END_BYTES : -_END_BYTES + 4] != _END:
            raise RuntimeError("torch.save did not write a plain zip archive")
        content[-2:] = struct.pack("<H", _COMMENT)
        content += _MARK
        content += hashlib.sha256(content).hexdigest().encode()
        file.write(content)


def load_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Load a checkpoint written by `save_checkpoint`; code in the file is never run.

    Use the CPU to resume: `load_state_dict` copies to the device of modules and optimisers, and
    generator states must be on the CPU.

    Raises:
        ConfigError: the file is missing, damaged (checksum), not a checkpoint, or of another
            format.
    """
    damaged = f"checkpoint {path}: damaged, or not a checkpoint; use an earlier checkpoint"
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the path is invalid"
        raise ConfigError(f"checkpoint {path}: cannot be read: {reason}") from error
    signed = content[-_COMMENT : -_COMMENT + len(_MARK)] == _MARK
    if signed and content[-64:] != hashlib.sha256(content[:-64]).hexdigest().encode():
        raise ConfigError(damaged)
    try:
        with warnings.catch_warnings():  # raised for files of other programs
            warnings.simplefilter("ignore", UserWarning)
            payload = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"checkpoint {path}: refused, because the file could run code; use a checkpoint of "
            "plain tensors and numbers"
        ) from error
    except Exception as error:  # a damaged file can raise anything
        raise ConfigError(damaged) from error
    format_ = payload.get("format") if isinstance(payload, dict) else None
    if format_ is None:
        raise ConfigError(f"checkpoint {path}: not a checkpoint: the key format is missing")
    if type(format_) is not int or format_ != FORMAT:
        raise ConfigError(
            f"checkpoint {path}: the format is {format_!r}; this version reads format {FORMAT}"
        )
    if not signed:
        raise ConfigError(f"checkpoint {path}: the checksum is missing; the file may be damaged")
    return dict(payload)


def misfit(ours: Mapping[str, Any], saved: object) -> str | None:
    """Describe the first tensor whose shape differs between two networks; None if all agree."""
    if not isinstance(saved, Mapping):
        return "the network is absent there"
    here = {name: _shape(value) for name, value in ours.items()}
    there = {str(name): _shape(value) for name, value in saved.items()}
    for name in here | there:
        if here.get(name) != there.get(name):
            return f"{name} is {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
    return None


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return "not a tensor"
    return "x".join(str(length) for length in value.shape) or "a scalar"


def check_plain(value: Any, where: str) -> None:
    """Raise a TypeError for values that `torch.load(weights_only=True)` would reject."""
    if isinstance(value, Tensor) or type(value) in _PLAIN:  # not isinstance: numpy's float64
        return
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            check_plain(key, f"a key of {where}")
            check_plain(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            check_plain(item, f"{where}[{index}]")
    else:
        raise TypeError(
            f"{where} is a {type(value).__name__}; "
            "a checkpoint holds tensors, numbers and strings in dicts, lists and tuples"
        )


def tensors_checksum(*states: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 digest of all tensors."""
    digest = hashlib.sha256()
    for state in states:
        for tensor in state.values():
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_weights(now: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Check that a resumed run reads the same weights and files as at its start.

    `now` has the current checksums by name of weights or file, `before` those in the checkpoint.
    Names in only one mapping are ignored. Raises ConfigError if weights or files have changed.
    """
    for name, checksum in now.items():
        if before.get(name, checksum) != checksum:
            raise ConfigError(
                f"{name} has changed since this run began; restore the weights or the file, or "
                "start a new run"
            )
