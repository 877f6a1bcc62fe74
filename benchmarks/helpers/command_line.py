"""Command line of the benchmarks: options, configuration and result files."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import harness
from marl_framework import command_line
from marl_framework.command_line import BAD_INPUT, add_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import (
    config_from_dict,
    config_to_dict,
    load_config,
    resolve_config_path,
)
from marl_framework.config.model import Config
from marl_framework.device import resolve_device, resolve_precision
from marl_framework.mission.seeding import MAX_SEED

RESULTS = Path(__file__).resolve().parents[1] / "results"

_MOST_DIGITS = 8  # maximum number of digits in an option's value


@dataclass(frozen=True)
class Job:
    """One run of a benchmark."""

    options: argparse.Namespace
    config: Config
    device: torch.device
    machine: dict[str, Any]
    """Description of this machine; see `harness.describe_machine`."""
    path: Path
    """JSON file of the results."""
    suite: str
    """Name of the benchmark."""

    def save(self, results: dict[str, Any]) -> None:
        """Write the results with machine and configuration, atomically."""
        content = {"settings": {}, "machine": self.machine, **results}
        content["settings"] = {"configuration": config_to_dict(self.config)} | content["settings"]
        harness.write_json(self.path, self.suite, content)
        results |= content


Measure = Callable[[Job], dict[str, Any]]
Table = Callable[[dict[str, Any]], str]
Draw = Callable[[dict[str, Any], Path], None]


class Parser(command_line.Parser):
    """Parser with the options that all benchmarks share.

    Args:
        module: name below `benchmarks`, such as `speed.rollout`; the last part names the JSON file.
        description: one-line description.
        config: default params file.
        device: whether the benchmark also runs on a GPU and has the option `--device`.
    """

    def __init__(
        self, module: str, description: str, config: str = "params.yaml", device: bool = True
    ) -> None:
        super().__init__(prog=f"python -m benchmarks.{module}", description=description)
        self._suite = module.rpartition(".")[2]
        self._keys: dict[str, str] = {"device": "compute.device"}
        self.add_argument(
            "--config",
            default=config,
            metavar="FILE",
            help="params file: a path, or a name in params/ (default: %(default)s)",
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
            help=f"file for the results (default: benchmarks/results/{self._suite}--<device>.json)",
        )
        self.add_argument(
            "--seconds-per-row",
            type=seconds,
            default=3.0,
            metavar="S",
            help="time budget per row [s] (default: %(default)s)",
        )

    def add_number(self, option: str, default: int, meaning: str, least: int, most: int) -> None:
        """Add an option for a whole number from `least` to `most`."""
        self.add_argument(
            option,
            type=whole_number(least, most),
            default=default,
            metavar="N",
            help=f"{meaning} (default: %(default)s)",
        )

    def add_numbers(
        self, option: str, default: str | None, meaning: str, most: int, least: int = 1
    ) -> None:
        """Add an option for a list of whole numbers such as `1,16,64`, sorted when read."""
        read_number = whole_number(least, most)
        self.add_argument(
            option,
            type=lambda text: sorted({read_number(part.strip()) for part in text.split(",")}),
            default=default,
            metavar="N,…",
            help=f"{meaning} (default: {default or 'as configured'})",
        )

    def add_names(self, option: str, known: Collection[str]) -> None:
        """Add an option for a list of known names; by default all names."""
        self.add_argument(
            option,
            type=names_of(known),
            default=",".join(known),
            metavar="NAME,…",
            help=f"choose from {', '.join(known)} (default: all)",
        )

    def add_key(self, option: str, key: str, default: object = None, **more: Any) -> None:
        """Add an option that sets a key of the params file; the option overrides `--set`."""
        shown = "as configured" if default is None else default
        action = self.add_argument(
            option, default=default, help=f"{key} (default: {shown})", **more
        )
        self._keys[action.dest] = key

    def add_flights(self) -> None:
        """Add the options for a trained team and its missions."""
        text, team = "trained team called student (default: %(default)s)", "pretrained:student"
        self.add_argument("--checkpoint", default=team, metavar="RUN", help=text)
        self.add_number("--missions", 50, "missions per row", 2, 4096)
        self.add_number("--seed", 101, "evaluation seed", 0, MAX_SEED - 1)

    def publish(
        self,
        arguments: Sequence[str] | None,
        measure: Measure,
        table: Table,
        draw: Draw | None = None,
    ) -> int:
        """Measure, write the results and an optional figure, and print the results.

        Args:
            arguments: command line; None for this process's own.
            measure: function that returns the JSON's content; raises ConfigError for bad input.
            table: function that returns the results as text.
            draw: function that writes a PNG next to the JSON; None for no figure.

        Returns:
            The exit code: 0, or 2 for bad input.
        """
        options = self.parse_args(arguments)

        def work() -> str:
            job = self._job(options)
            results = measure(job)
            job.save(results)
            files = [job.path]
            if draw is not None:
                files.append(job.path.with_suffix(".png"))
                draw(results, files[-1])
            return "\n".join([table(results), *map(str, files)])

        return answer(options.out, work)

    def _job(self, options: argparse.Namespace) -> Job:
        option_overrides = [
            f"{key}={value}"
            for name, key in self._keys.items()
            if (value := getattr(options, name)) is not None
        ]
        with command_line.plain_warnings():
            path = resolve_config_path(options.config)
            config = load_config(path, [*options.overrides, *option_overrides])
            device = resolve_device(config.compute.device)
        resolve_precision(config.compute.precision, device)
        out = output_file(options.out, self._suite, device)
        return Job(options, config, device, harness.announce_machine(device), out, self._suite)


def answer(out: Path | None, work: Callable[[], str]) -> int:
    """Print the text that `work` returns, or a one-line error for bad input.

    Args:
        out: output file or folder, cited if a system error names no file.
        work: function that returns text; raises ConfigError or OSError for bad input.

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


def output_file(out: Path | None, suite: str, device: torch.device) -> Path:
    """Return the path of the result file; create the folder.

    Raises:
        ConfigError: the name does not end in .json, or the file cannot be written.
    """
    path = RESULTS / f"{suite}--{harness.device_slug(device)}.json" if out is None else out
    if path.suffix != ".json":
        raise ConfigError(f"--out {path}: the name must end in .json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror or error}") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--out {path}: cannot be written; choose another file")
    return path


def with_overrides(config: Config, *overrides: str) -> Config:
    """Return the configuration with `section.key=value` changes, checked like a params file.

    Raises:
        ConfigError: the changed configuration is invalid.
    """
    return config_from_dict(config_to_dict(config), overrides=overrides)


# Types of options -------------------------------------------------------------------------


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return an argparse type for a whole number from `least` to `most`."""

    def read(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
        if not is_number or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number from {least} to {most}")
        return int(text)

    return read


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return an argparse type for a list of known names such as `ours,vmas`, without repeats."""

    def read(text: str) -> list[str]:
        names = list(dict.fromkeys(part.strip() for part in text.split(",")))
        if unknown := [name for name in names if name not in known]:
            known_names = ", ".join(known)
            raise argparse.ArgumentTypeError(f"{unknown[0]} is unknown; choose from {known_names}")
        return names

    return read


def seconds(text: str) -> float:
    """Read a duration above 0 [s]."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a number of seconds above 0")
    return number
