"""Writers of a training run's log: TensorBoard and Weights & Biases."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from marl_framework.config.errors import ConfigError

TENSORBOARD = "TensorBoard"
WANDB = "Weights & Biases"
_KEY = "logging.writers"


class Writer(Protocol):
    """Writes metrics; TensorBoard's SummaryWriter is one.

    A write that fails raises OSError; the training then goes on without this writer.
    """

    def add_scalar(self, tag: str, value: float, step: int, /) -> None:
        """Write a number."""

    def add_image(
        self, tag: str, pixels: np.ndarray[Any, Any], step: int, /, *, dataformats: str
    ) -> None:
        """Write a picture of uint8; `dataformats` is HW or HWC."""

    def add_histogram_raw(
        self,
        tag: str,
        /,
        *,
        min: float,
        max: float,
        num: float,
        sum: float,
        sum_squares: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: int,
    ) -> None:
        """Write a histogram; each bin ends at its limit, the first one starts at `min`."""

    def close(self) -> None:
        """Write what is pending and close the log."""


def check_writers(names: Sequence[str]) -> None:
    """Refuse writers that are not installed.

    Raises:
        ConfigError: says what to install.
    """
    if "wandb" in names and find_spec("wandb") is None:
        raise ConfigError(
            f"{_KEY}: wandb is not installed; pip install 'marl_framework[wandb]', or choose "
            "[tensorboard]"
        )


def more_writers(
    names: Sequence[str], folder: Path, config: Mapping[str, Any]
) -> dict[str, Writer]:
    """Return the writers besides TensorBoard, by what they are called.

    Args:
        names: `logging.writers`.
        folder: of the run; its name is the run's.
        config: plain data of the configuration.

    Raises:
        ConfigError: one cannot be used.
    """
    check_writers(names)
    return {WANDB: WandbWriter(folder, config)} if "wandb" in names else {}


class WandbWriter:
    """Writes to Weights & Biases under the run's name, on the same line when it is resumed.

    Its own settings come from the environment, such as WANDB_PROJECT, WANDB_ENTITY and
    WANDB_MODE=offline. What was logged for later steps than a resumed run goes on from stays.

    Args:
        folder: of the run; its files and its identity there go into it.
        config: shown with the run.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._wandb = import_module("wandb")
        identity = folder / "wandb_id"
        try:
            if not identity.is_file():
                identity.write_text(uuid.uuid4().hex, encoding="utf-8")
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "marl_framework"),
                id=identity.read_text(encoding="utf-8"),
                name=folder.name,
                dir=str(folder),
                config=dict(config),
                resume="allow",
            )
        except self._wandb.Error as error:
            raise ConfigError(
                f"{_KEY}: wandb cannot start: {error}; log in with `wandb login`, or set "
                "WANDB_MODE=offline"
            ) from error

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Write a number."""
        self._log(tag, value, step)

    def add_image(
        self, tag: str, pixels: np.ndarray[Any, Any], step: int, dataformats: str
    ) -> None:
        """Write a picture."""
        self._log(tag, self._wandb.Image(pixels), step)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: float,
        sum: float,
        sum_squares: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: int,
    ) -> None:
        """Write a histogram."""
        edges = np.array([min, *bucket_limits])
        counted = (np.array(bucket_counts), edges)
        self._log(tag, self._wandb.Histogram(np_histogram=counted), global_step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()

    def _log(self, tag: str, value: object, step: int) -> None:
        try:
            self._run.log({tag: value}, step=step)
        except self._wandb.Error as error:
            raise OSError(str(error)) from error
