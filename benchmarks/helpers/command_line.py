"""The command line of every benchmark: its arguments, its configuration, where its JSON goes."""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import harness
from marl_framework import command_line
from marl_framework.command_line import BAD_INPUT, add_overrides
from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.loading import (
    config_from_dict,
    config_to_dict,
    load_config,
    resolve_config_path,
)
from marl_framework.config.model import Config
from marl_framework.device import resolve_device, resolve_precision

RESULTS = Path(__file__).resolve().parents[1] / "results"

_MOST_TRAININGS = 1000
_MOST_DIGITS = 8  # of a number in a list

Measure = Callable[[argparse.Namespace, Config, torch.device], dict[str, Any]]
Table = Callable[[dict[str, Any]], str]
Draw = Callable[[dict[str, Any], Path], None]


class Parser(command_line.Parser):
    """Has the arguments of every benchmark.

    Args:
        module: below `benchmarks`, such as `speed.rollout`; its last part names the JSON.
        description: one line.
        config: the params file by default.
        device: whether the benchmark runs on a GPU too, and so has `--device`.
    """

    def __init__(
        self, module: str, description: str, config: str = "params.yaml", device: bool = True
    ) -> None:
        super().__init__(prog=f"python -m benchmarks.{module}", description=description)
        self.suite = module.rpartition(".")[2]
        self.add_argument(
            "--config",
            default=config,
            metavar="FILE",
            help=f"params file: a path, or a name in params/ (default: {config})",
        )
        add_overrides(self)
        if device:
            self.add_argument("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N")
        else:
            self.set_defaults(device="cpu")
        self.add_argument(
            "--out",
            type=Path,
            metavar="FILE.json",
            help=f"where the JSON goes (default: benchmarks/results/{self.suite}--<device>.json)",
        )
        self.add_argument(
            "--seconds-per-row", type=float, default=3.0, metavar="S", help="time budget (3)"
        )

    def add_trainings(self, steps: int, seeds: int) -> None:
        """Add `--steps` and `--seeds`: the length and the number of the trainings of a row."""
        self.add_argument(
            "--steps", type=int, default=steps, metavar="S", help=f"training steps ({steps})"
        )
        self.add_argument(
            "--seeds", type=int, default=seeds, metavar="N", help=f"trainings a row ({seeds})"
        )

    def publish(
        self, options: argparse.Namespace, measure: Measure, table: Table, draw: Draw | None = None
    ) -> int:
        """Measure, write the results, with a figure beside them, and print them.

        Args:
            options: of this parser.
            measure: called with them, the configuration and the device; returns what the JSON
                holds, or raises ConfigError where an argument is wrong.
            table: returns the results as text.
            draw: writes a PNG.

        Returns:
            The exit code: 0, or 2 for bad input.
        """

        def work() -> str:
            config, device, path = read_options(options, self.suite)
            found = measure(options, config, device)
            harness.write_json(path, self.suite, found)
            files = [path]
            if draw is not None:
                files.append(path.with_suffix(".png"))
                draw(found, files[-1])
            return "\n".join([table(found), *map(str, files)])

        return answer(options.out, work)


def answer(out: Path | None, work: Callable[[], str]) -> int:
    """Print what the work behind a command line returns, or one line where its input is bad.

    Args:
        out: the file that is written, for errors of the system that name none.
        work: raises ConfigError or OSError.

    Returns:
        The exit code: 0, or 2 for bad input.
    """
    try:
        text = work()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"error: {error.filename or out}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    print(text)
    return 0


def read_options(options: argparse.Namespace, suite: str) -> tuple[Config, torch.device, Path]:
    """Return the configuration, the device and the output file of a command line.

    Short forms win over `--set`.

    Raises:
        ConfigError: one of them is wrong.
    """
    short = [
        f"compute.{name}={value}"
        for name in ("device", "precision")
        if (value := getattr(options, name, None)) is not None
    ]
    config = _read_config(options, [*options.overrides, *short])
    with command_line.plain_warnings():
        device = resolve_device(config.compute.device)
    resolve_precision(config.compute.precision, device)
    return config, device, output_file(options.out, suite, device)


def _read_config(options: argparse.Namespace, overrides: list[str]) -> Config:
    """Return the configuration of a command line, its warnings as one line each."""
    if not 0 < options.seconds_per_row < math.inf:
        raise ConfigError(
            f"--seconds-per-row {options.seconds_per_row:g}: give a number of seconds above 0"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        config = load_config(resolve_config_path(options.config), overrides)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    return config


def output_file(out: Path | None, suite: str, device: torch.device) -> Path:
    """Return where the JSON goes, its folder made.

    Raises:
        ConfigError: the name does not end in .json, or nothing can be written there.
    """
    path = RESULTS / f"{suite}--{harness.device_slug(device)}.json" if out is None else out
    if path.suffix != ".json":
        raise ConfigError(f"--out {path}: the name must end in .json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror or error}") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--out {path}: cannot be written; name a file where you may write")
    return path


def with_overrides(config: Config, *overrides: str) -> Config:
    """Return the configuration with `section.key=value` changes, checked like a params file.

    Raises:
        ConfigError: the changed configuration makes no sense.
    """
    return config_from_dict(config_to_dict(config), overrides=overrides)


def with_steps(config: Config, steps: int) -> Config:
    """Return the configuration with another number of training steps.

    Raises:
        ConfigError: there is nothing to train.
    """
    return with_overrides(config, f"learning.training_steps={steps}")


def with_trainings(config: Config, options: argparse.Namespace) -> Config:
    """Return the configuration of the trainings that `Parser.add_trainings` asks for.

    Raises:
        ConfigError: their length or their number is wrong.
    """
    check_between("--seeds", options.seeds, 1, _MOST_TRAININGS)
    return with_steps(config, options.steps)


def check_between(option: str, value: int, least: int, most: int) -> None:
    """Refuse a number that is too small or too large.

    Raises:
        ConfigError: with what would be right.
    """
    if not least <= value <= most:
        raise ConfigError(f"{option} {value}: must lie in {least} … {most}")


def parse_numbers(option: str, text: str, example: str, most: int, least: int = 1) -> list[int]:
    """Return the whole numbers of a list such as `1,16,64`, in rising order, each once.

    Raises:
        ConfigError: they are not whole numbers from `least` to `most`.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts):
        raise ConfigError(
            f"{option} {text}: give whole numbers with commas between, such as {example}"
        )
    numbers = sorted({int(part) for part in parts})
    for number in numbers:
        check_between(option, number, least, most)
    return numbers


def parse_names(option: str, text: str, known: Collection[str]) -> list[str]:
    """Return the names of a list such as `ours,vmas`.

    Raises:
        ConfigError: one of them is not known.
    """
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: choose from {', '.join(known)}")
    return names
