"""List, archive and delete runs: `python -m marl_framework.history`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from marl_framework.command_line import BAD_INPUT, Parser, as_program, loaded, plain_warnings
from marl_framework.config.errors import ConfigError
from marl_framework.runs.history import History, describe_run, state_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done or 2 bad input."""
    options = _make_parser().parse_args(arguments)
    loaded()
    try:
        history = History(Path(options.runs or "runs"))  # the default may have only archived runs
        if options.runs is not None and not history.runs.is_dir():
            raise ConfigError(f"--runs {options.runs}: not a folder; give the folder of the runs")
        with plain_warnings():
            for line in _run(history, options):
                print(line)
    except BrokenPipeError:
        raise
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _run(history: History, options: argparse.Namespace) -> Iterator[str]:
    """Run a subcommand; yield the lines to print."""
    if options.command == "list":
        if options.name:
            history.check(options.name)
        for name in [options.name] if options.name else history.names():
            for stamp in history.stamps(name):
                yield _summarise(f"{name}/{stamp}", history.folder / name / stamp)
            if (history.runs / name).is_dir():
                yield _summarise(name, history.runs / name)
    elif options.command == "show":
        path = history.find(options.run)
        yield f"folder: {path}"
        yield from (f"{name}: {value}" for name, value in _read_metadata(path).items())
    elif options.command == "archive":
        moved = history.archive(options.name)
        if moved is not None:
            yield f"The earlier run '{options.name}' is now in {moved}"
    else:
        if options.keep < 0:
            raise ConfigError(f"--keep {options.keep}: must be 0 or more")
        history.check(options.name)
        yield from (f"deleted {path}" for path in history.clean(options.name, options.keep))


def _read_metadata(path: Path) -> dict[str, Any]:
    return {**describe_run(path), "state": state_of(path)}


def _summarise(label: str, path: Path) -> str:
    run = _read_metadata(path)
    entropy = run["best"].get("validation_entropy")
    best = f", best validation entropy {entropy:.4f}" if isinstance(entropy, float) else ""
    steps = run["training_step"]
    is_flight = steps is None and run["state"] == "finished"  # missions without training
    made = "" if is_flight else f", {steps or 0} training steps"
    return f"{label}: {run['state']}{made}{best}, began {run['started']}"


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.history", description=__doc__)
    parser.add_argument(
        "--runs",
        metavar="FOLDER",
        help="folder of the runs, logging.directory (default: runs); archived runs are in "
        "training_history/ next to this folder",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str, argument: str, **more: Any) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(argument, **more)
        return command

    add("list", "list current and archived runs: all, or those with this name", "name", nargs="?")
    add("show", "show commit, versions, state and results of a run, NAME or NAME/TIME", "run")
    add("archive", "move a run to training_history/", "name")
    clean = add("clean", "delete archived runs with this name, except the newest N", "name")
    clean.add_argument("--keep", type=int, required=True, metavar="N")
    return parser


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
