"""Names of runs and checkpoints; does not import PyTorch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from marl_framework.config.errors import ConfigError

PRETRAINED = "pretrained:"
"""Prefix of the names of checkpoints that the package contains."""
_SHIPPED = Path(__file__).parents[1] / "pretrained"
_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]{1,200}")


def is_run_name(name: str) -> bool:
    """Return whether a name has an allowed length and allowed characters."""
    return bool(_NAME.fullmatch(name)) and name not in (".", "..")


def check_run_name(name: str) -> None:
    """Check a run name.

    Raises ConfigError if the name is too long or contains forbidden characters.
    """
    if not is_run_name(name):
        raise ConfigError(
            f"run name {name!r}: use up to 200 letters, digits, '.', '_', '-'; "
            "not '.', '..' or a leading '-'"
        )


def name_in_use(path: Path) -> ConfigError:
    """Build the error for a run name whose path already exists."""
    resume = "continue the training with --resume, " if (path / "checkpoints").exists() else ""
    return ConfigError(
        f"run name {path.name}: {path} exists; choose another name, {resume}or move the run away "
        f"with python -m marl_framework.history --runs {path.parent} archive {path.name}"
    )


def checkpoint_file(name: str) -> Path:
    """Return the path of a checkpoint file.

    `name` is a checkpoint file; a run folder, for its best or else last checkpoint; or
    `pretrained:NAME`. Raises ConfigError if the checkpoint does not exist.
    """
    if name.startswith(PRETRAINED):
        shipped = {PRETRAINED + path.stem: path for path in sorted(_SHIPPED.glob("*.pt"))}
        if name not in shipped:
            raise ConfigError(f"checkpoint {name}: unknown; choose from {', '.join(shipped)}")
        return shipped[name]
    if not name:
        raise ConfigError("checkpoint: the name is empty; give a run folder or a checkpoint file")
    path = Path(name)
    if os.path.isdir(path):  # unlike Path.is_dir, never raises
        for file in (path / "checkpoints" / "best.pt", path / "checkpoints" / "last.pt"):
            if os.path.isfile(file):
                return file
        raise ConfigError(
            f"checkpoint {name}: the folder has neither checkpoints/best.pt nor "
            "checkpoints/last.pt; give a run folder or a checkpoint file"
        )
    try:
        path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the path is invalid"
        raise ConfigError(f"checkpoint {path}: cannot be read: {reason}") from error
    return path


def checkpoint_name(path: Path) -> str:
    """Return a name for `checkpoint_file`; `pretrained:NAME` if the package contains the file."""
    return PRETRAINED + path.stem if path.parent == _SHIPPED else str(path)
