"""Checkpoint files: written atomically, verified by checksum, and read without running code."""

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
"""Version of the layout; files of another version are rejected."""

# A checkpoint is a zip archive whose comment ends with the SHA-256 of all bytes before the digest.
# Content and checksum share one file, which every reader of zip archives can open.
_MARK = b"sha256="
_COMMENT = len(_MARK) + 64
_END = b"PK\x05\x06"  # end record of an archive; its last two bytes are the comment's length
_END_BYTES = 22
_PLAIN = (type(None), bool, int, float, str, bytes)


def save_checkpoint(path: Path | str, payload: Mapping[str, Any]) -> None:
    """Write a checkpoint for `load_checkpoint`; add the key `format`.

    Args:
        path: file to write or replace, in an existing folder.
        payload: tensors, numbers, strings and None in nested dicts, lists and tuples.

    Raises:
        TypeError: a value has another type.
        OSError, RuntimeError: the file could not be written; an existing file is unchanged.
    """
    check_plain(payload, "payload")
    with atomic_file(Path(path)) as file:
        buffer = io.BytesIO()
        torch.save({**payload, "format": FORMAT}, buffer)
        content = bytearray(buffer.getbuffer())
        if content[-_END_BYTES : -_END_BYTES + 4] != _END:
            raise RuntimeError("torch.save wrote no plain zip archive")
        content[-2:] = struct.pack("<H", _COMMENT)
        content += _MARK
        content += hashlib.sha256(content).hexdigest().encode()
        file.write(content)


def load_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint of `save_checkpoint` without running any code it may contain.

    Use the CPU to resume: `load_state_dict` copies to the device of modules and optimisers, and
    generator states must be on the CPU.

    Raises:
        ConfigError: the file is missing, damaged (checksum), not a checkpoint, or of another
            format.
    """
    damaged = f"checkpoint {path}: it is damaged or no checkpoint; use an earlier one"
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no readable file"
        raise ConfigError(f"checkpoint {path}: cannot be read: {reason}") from error
    signed = content[-_COMMENT : -_COMMENT + len(_MARK)] == _MARK
    if signed and content[-64:] != hashlib.sha256(content[:-64]).hexdigest().encode():
        raise ConfigError(damaged)
    try:
        with warnings.catch_warnings():  # of foreign files
            warnings.simplefilter("ignore", UserWarning)
            payload = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"checkpoint {path}: refused: it is no checkpoint of plain tensors and numbers, "
            "and such a file could run code"
        ) from error
    except Exception as error:  # a damaged file can raise anything
        raise ConfigError(damaged) from error
    found = payload.get("format") if isinstance(payload, dict) else None
    if found is None:
        raise ConfigError(f"checkpoint {path}: it lacks the key format; it is no checkpoint")
    if type(found) is not int or found != FORMAT:
        raise ConfigError(
            f"checkpoint {path}: its format is {found!r}, and this version reads {FORMAT}"
        )
    if not signed:
        raise ConfigError(f"checkpoint {path}: it lacks its checksum, so it may be damaged")
    return dict(payload)


def misfit(ours: Mapping[str, Any], saved: object) -> str | None:
    """Return where the tensors of a saved network differ in shape from ours; None: nowhere."""
    if not isinstance(saved, Mapping):
        return "it is absent there"
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
            "a checkpoint holds tensors, numbers and texts in dicts, lists and tuples"
        )


def tensors_checksum(*states: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all tensors."""
    digest = hashlib.sha256()
    for state in states:
        for tensor in state.values():
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_weights(now: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Check that a resumed run reads the weights and files that it began with.

    Args:
        now: checksums of weights and files by name.
        before: checksums in the checkpoint; names in only one of them are ignored.

    Raises:
        ConfigError: some have changed.
    """
    for name, checksum in now.items():
        if before.get(name, checksum) != checksum:
            raise ConfigError(
                f"{name} has other weights than when this run began, or other contents; restore "
                "them, or start a new run"
            )
