"""Write the log of a training run to Weights & Biases, in addition to TensorBoard."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from marl_framework.config.errors import ConfigError


def check_writers(names: Sequence[str]) -> None:
    """Check that the writers of `logging.writers` are installed.

    Raises ConfigError if a writer is not installed; the message names the package to install.
    """
    if "wandb" in names and find_spec("wandb") is None:
        raise ConfigError(
            "logging.writers: wandb is not installed; run pip install 'marl_framework[wandb]' "
            "or choose [tensorboard]"
        )


class WandbWriter:
    """Writes to Weights & Biases with the methods of TensorBoard's SummaryWriter.

    A resumed run continues its curves; entries of later steps remain. Settings come from
    environment variables such as WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE=offline. A failed
    write raises OSError.

    The name of the run folder becomes the run's name; `folder` also holds wandb's files and run ID.
    `config`, as plain data, is shown with the run. Raises ConfigError if wandb cannot start.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._wandb = import_module("wandb")
        id_file = folder / "wandb_id"
        try:
            if not id_file.is_file():
                id_file.write_text(uuid.uuid4().hex, encoding="utf-8")
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "marl_framework"),
                id=id_file.read_text(encoding="utf-8"),
                name=folder.name,
                dir=str(folder),
                config=dict(config),
                resume="allow",
            )
        except self._wandb.Error as error:
            raise ConfigError(
                f"logging.writers: wandb cannot start: {error}; log in with `wandb login` or set "
                "WANDB_MODE=offline"
            ) from error

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Write a scalar."""
        self._log(tag, value, step)

    def add_image(
        self, tag: str, pixels: np.ndarray[Any, Any], step: int, dataformats: str
    ) -> None:
        """Write an image."""
        self._log(tag, self._wandb.Image(pixels), step)

    def add_histogram_raw(
        self,
        tag: str,
        *,
        min: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: int,
        **_: float,
    ) -> None:
        """Write a histogram whose bins end at `bucket_limits`; the first bin starts at `min`."""
        edges = np.array([min, *bucket_limits])
        histogram = (np.array(bucket_counts), edges)
        self._log(tag, self._wandb.Histogram(np_histogram=histogram), global_step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()

    def _log(self, tag: str, value: object, step: int) -> None:
        try:
            self._run.log({tag: value}, step=step)
        except self._wandb.Error as error:
            raise OSError(str(error)) from error
