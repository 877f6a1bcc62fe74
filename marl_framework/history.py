"""Earlier runs of a name: `python -m marl_framework.history list`, show, restore, compare, clean.

They lie in `training_history/<run name>/<UTC time>/` beside the folder of the runs, each with a
`metadata.json`: configuration, commit, versions, start and end, last metrics.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from marl_framework.command_line import BAD_INPUT, Parser, to_pipe
from marl_framework.config_io import ConfigError, config_to_dict, load_config
from marl_framework.configuration.errors import KEYS, show
from marl_framework.training.files import (
    RunLock,
    check_run_name,
    folder_guard,
    is_locked,
    read_json,
    write_json,
)

_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z(-[0-9]+)?")
_METADATA = "metadata.json"


class History:
    """The runs of a folder and what is kept of earlier ones.

    Args:
        runs: `logging.directory`.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.folder = runs.absolute().parent / "training_history"

    def names(self) -> list[str]:
        """Return the names that have earlier runs."""
        return sorted(path.name for path in _folders(self.folder))

    def stamps(self, name: str) -> list[str]:
        """Return the times of a name's earlier runs, oldest first."""
        check_run_name(name)
        found = [p.name for p in _folders(self.folder / name) if _STAMP.fullmatch(p.name)]
        return sorted(found, key=_age)

    def find(self, text: str) -> Path:
        """Return the folder of `name/time`, of `name` (the run, else its newest earlier one).

        Raises:
            ConfigError: there is none; says what there is.
        """
        name, slash, stamp = text.partition("/")
        stamps = self.stamps(name)
        if not slash:
            if (self.runs / name).is_dir():
                return self.runs / name
            if stamps:
                return self.folder / name / stamps[-1]
            raise ConfigError(f"{name}: no run of this name in {self.runs} or {self.folder}")
        if stamp not in stamps:
            known = ", ".join(stamps[-5:]) or "none"
            raise ConfigError(f"{text}: no such earlier run; {self.folder / name} holds {known}")
        return self.folder / name / stamp

    def archive(self, name: str) -> Path | None:
        """Move the run of a name to the history; None where there is none.

        Raises:
            ConfigError: it is being trained, or cannot be moved; nothing was changed.
        """
        check_run_name(name)
        source = self.runs / name
        with folder_guard(self.runs):
            if not os.path.lexists(source):
                return None
            with _locked(source):
                return self._move_away(source)

    def restore(self, text: str) -> Path:
        """Move an earlier run back; a run that has its place moves to the history.

        Raises:
            ConfigError: there is no such run, or the name is being trained.
        """
        name, slash, _ = text.partition("/")
        if not slash:
            raise ConfigError(f"{text}: name an earlier run as {name}/TIME, see list {name}")
        source, target = self.find(text), self.runs / name
        self.runs.mkdir(parents=True, exist_ok=True)
        with folder_guard(self.runs):
            if os.path.lexists(target):
                with _locked(target):
                    self._move_away(target)
            _move(source, target)
        return target

    def clean(self, name: str, keep: int) -> list[Path]:
        """Delete all but the newest earlier runs of a name; return the ones deleted."""
        stamps = self.stamps(name)
        old = [self.folder / name / stamp for stamp in stamps[: max(len(stamps) - keep, 0)]]
        for path in old:
            shutil.rmtree(path)
        return old

    def _move_away(self, source: Path) -> Path:
        folder = self.folder / source.name
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        target, copy = folder / stamp, 1
        while os.path.lexists(target):
            copy += 1
            target = folder / f"{stamp}-{copy}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if source.is_dir() and not source.is_symlink():
                write_json(source / _METADATA, describe_run(source))
            _move(source, target)
        except OSError as error:
            raise ConfigError(f"cannot move {source} to {target}: {error.strerror}") from error
        return target


def describe_run(run: Path) -> dict[str, Any]:
    """Return what is known of a run: what it was, when, how it ended and what it reached."""
    environment = read_json(run / "environment.json")
    status, summary = read_json(run / "status.json"), read_json(run / "summary.json")
    results = summary.get("results", {})
    files = [path for path in run.rglob("*") if path.is_file() and path.name != _METADATA]
    newest = max((path.stat().st_mtime for path in files), default=run.stat().st_mtime)
    state = status.get("state", "unknown")
    return {
        "name": run.name if not _STAMP.fullmatch(run.name) else run.parent.name,
        "state": "killed" if state == "training" else state,  # nobody trains in it any more
        "started": environment.get("started"),
        "ended": datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds"),
        "resumed": environment.get("resumed", []),
        "command": environment.get("command"),
        "commit": environment.get("commit"),
        "uncommitted_changes": environment.get("uncommitted_changes"),
        "uncommitted_diff": "uncommitted.diff" if (run / "uncommitted.diff").exists() else None,
        "versions": environment.get("versions", {}),
        "device": environment.get("device"),
        "configuration": "config.yaml" if (run / "config.yaml").exists() else None,
        "training_step": results.get("training_steps", status.get("training_step")),
        "last": results.get("last", status.get("last", {})),
        "best": results.get("best", status.get("best", {})),
    }


def compare(first: Path, second: Path) -> list[tuple[str, str, str]]:
    """Return what differs: (name, in the first run, in the second run)."""
    rows = []
    for a, b in zip(_configuration(first), _configuration(second), strict=True):
        if a != b:
            rows.append((a[0], show(a[1]), show(b[1])))
    one, two = describe_run(first), describe_run(second)
    for name in ("commit", "training_step"):
        if one[name] != two[name]:
            rows.append((name, str(one[name]), str(two[name])))
    for group in ("last", "best"):
        for name in {**one[group], **two[group]}:
            before, after = one[group].get(name), two[group].get(name)
            if before != after:
                rows.append((f"{group} {name}", show(before), show(after)))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 0 done, 2 bad input."""
    options = _parser().parse_args(arguments)
    try:
        history = History(Path(options.runs))
        for line in _lines(history, options):
            print(line)
    except BrokenPipeError:
        raise
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _lines(history: History, options: argparse.Namespace) -> Iterator[str]:
    if options.command == "list":
        names = [options.name] if options.name else history.names()
        for name in names:
            for stamp in history.stamps(name):
                yield _brief(f"{name}/{stamp}", history.folder / name / stamp)
            if (history.runs / name).is_dir():
                yield _brief(name, history.runs / name)
    elif options.command == "show":
        path = history.find(options.run)
        yield f"folder: {path}"
        for name, value in _known(path).items():
            yield f"{name}: {value}"
    elif options.command == "compare":
        rows = compare(history.find(options.run), history.find(options.other))
        yield from (f"{name}: {a} -> {b}" for name, a, b in rows)
        if not rows:
            yield "no difference"
    elif options.command == "restore":
        yield f"{options.run} is now {history.restore(options.run)}"
    elif options.command == "archive":
        moved = history.archive(options.name)
        if moved is not None:
            yield f"The earlier run '{options.name}' is now in {moved}"
    else:
        if options.keep < 0:
            raise ConfigError(f"--keep {options.keep}: give a number of runs, 0 or more")
        for path in history.clean(options.name, options.keep):
            yield f"deleted {path}"


def _known(path: Path) -> dict[str, Any]:
    known = describe_run(path)
    return {**known, "state": "in training"} if is_locked(path) else known


def _brief(label: str, path: Path) -> str:
    known = _known(path)
    entropy = known["best"].get("validation_entropy")
    best = "" if entropy is None else f", best validation entropy {entropy:.4f}"
    steps = known["training_step"]
    return f"{label}: {known['state']}, {steps or 0} training steps{best}, began {known['started']}"


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").partition("\n")[0]
    parser = Parser(prog="python -m marl_framework.history", description=summary)
    parser.add_argument(
        "--runs", default="runs", metavar="FOLDER", help="logging.directory (default: runs)"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str, *arguments: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        for argument in arguments:
            command.add_argument(argument)
        return command

    add("list", "list earlier runs").add_argument("name", nargs="?")
    run = "NAME or NAME/TIME"
    add("show", f"show what is known of a run, {run}", "run")
    add("restore", "move an earlier run back, NAME/TIME", "run")
    add("compare", f"show how two runs differ, each {run}", "run", "other")
    add("archive", "move the run of a name to the history", "name")
    clean = add("clean", "delete all but the newest N earlier runs of a name", "name")
    clean.add_argument("--keep", type=int, required=True, metavar="N")
    return parser


def _configuration(run: Path) -> list[tuple[str, Any]]:
    """All keys of a run's configuration with their values."""
    tree = config_to_dict(load_config(run / "config.yaml"))
    pairs = []
    for key in KEYS:
        value: Any = tree
        for part in key.split("."):
            value = value[part]
        pairs.append((key, value))
    return pairs


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def _age(stamp: str) -> tuple[str, int]:
    """Sort key: the second copy of a time comes after the first, the tenth after the ninth."""
    time, _, copy = stamp.partition("-")
    return time, int(copy or 1)


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Refuse a run that is being trained; what is no folder has nobody in it."""
    if run.is_symlink() or not run.is_dir():
        yield
        return
    lock = RunLock(run)
    try:
        yield
    finally:
        lock.release()


def _move(source: Path, target: Path) -> None:
    """Rename; between file systems copy first, so that the target appears whole."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        shutil.copytree(source, copy, symlinks=True)
        os.rename(copy, target)
        shutil.rmtree(source)


if __name__ == "__main__":
    sys.exit(to_pipe(main))
