"""Claims the folder of a new run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from marl_framework.config.model import Config
from marl_framework.runs.folder import TRAINING_FOLDERS, RunFolder
from marl_framework.runs.history import History


def start_run(
    config: Config,
    device: torch.device,
    name: str | None,
    *,
    archive_earlier: bool = False,
    folders: Sequence[str] = TRAINING_FOLDERS,
) -> RunFolder:
    """Claim a new run folder below `logging.directory`.

    Args:
        config: resolved configuration.
        device: where the run computes.
        name: run name; None for one from the title and the time.
        archive_earlier: move an earlier run of that name to the history first.
        folders: to be made in it.

    Raises:
        ConfigError: the name is not allowed or in use, the earlier run is being trained or
            cannot be moved, or the folder cannot be written.
    """
    directory = Path(config.logging.directory)
    if archive_earlier and name is not None:
        moved = History(directory).archive(name)
        if moved is not None:
            print(f"The earlier run '{name}' is now in {moved}", flush=True)
    return RunFolder.create(directory, name, config, device, folders)
