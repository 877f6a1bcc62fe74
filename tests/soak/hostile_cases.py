"""Commands of careless users, generated from tables; see `test_hostile_commands`."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from marl_framework.command_line import BAD_INPUT
from marl_framework.runs.lock import RunLock
from tests.soak.commands import ACCIDENTS, Ended, damaged, run, start

TEST = ("--config", "params_test.yaml", "--device", "cpu")
RANDOM = ("evaluate", *TEST, "--out", "o", "--policies", "random")
OWNED = "owned"
"""A file of this name shows that code from a file was executed."""


@dataclass(frozen=True)
class Case:
    """A command and its allowed results."""

    name: str
    command: Sequence[str]
    """Module of the package and its arguments."""
    codes: Sequence[int] = (BAD_INPUT,)
    """Allowed exit codes; negative for a signal."""
    named: str = ""
    """Part of the line of a refusal."""
    prepare: Callable[[Path, Path], object] = lambda at, whole: None
    """Makes files in the case's folder, from a trained run."""
    drive: Callable[[Sequence[str], Path], Ended] = run
    """Runs the command, perhaps several times or with signals."""


class Executable:
    """Object that creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        """Return the call that makes the object."""
        return os.system, (f"touch {OWNED}",)


# Checkpoints ----------------------------------------------------------------------------------


def swapped(at: Path, whole: Path, how: str) -> None:
    """Write `bad.pt`: an invalid checkpoint, or one of another program."""
    path = at / "bad.pt"
    if how == "executable":
        path.write_bytes(pickle.dumps(Executable()))
    elif how == "executable in an archive":
        torch.save({"format": 1, "actor": Executable()}, path)
    elif how == "another's":
        torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    elif how == "a loop of links":
        path.symlink_to(path)
    elif how == "a folder":
        path.mkdir()
    else:
        path.write_bytes(damaged((whole / "checkpoints" / "last.pt").read_bytes(), how))


SWAPS = (
    *(*ACCIDENTS, "executable", "executable in an archive", "another's", "a loop of links"),
    "a folder",
)
FLY_LEARNED = ("--policies", "learned", "--out", "o")
TO_FILE = ("--format", "torch", "--out", "team.pt2")
DEPLOY = ("--set", "experiment.missions.mission_mode=deployment", "--run-name", "t")
USES: Mapping[str, tuple[str, ...]] = {
    "evaluate": ("evaluate", "--checkpoint", "bad.pt", *FLY_LEARNED),
    "export": ("export", "--checkpoint", "bad.pt", *TO_FILE),
    "deploy": ("main", *TEST, *DEPLOY, "--checkpoint", "bad.pt"),
}


def copied(at: Path, whole: Path) -> Path:
    """Copy the trained run; return the copy."""
    return Path(shutil.copytree(whole, at / "runs" / whole.name))


def checkpoints() -> Iterator[Case]:
    """Checkpoints that are damaged, swapped or would execute code."""
    for use, command in USES.items():
        for how in SWAPS:
            prepare = partial(swapped, how=how)
            yield Case(f"checkpoint: {use}, {how}", command, named="bad.pt", prepare=prepare)
    wrong = ("--checkpoint", "runs/whole", "--set", "experiment.constraints.num_actions=9")
    for module, rest in (("evaluate", FLY_LEARNED), ("export", TO_FILE)):
        name = f"checkpoint: {module}, of other actions"
        yield Case(name, (module, *wrong, *rest), named="runs/whole", prepare=copied)


# Run folders ----------------------------------------------------------------------------------

RESUME = ("main", *TEST, "--run-name", "whole", "--resume", "--max-episodes", "5")
LONGER = (
    *(*RESUME, "--allow-changed", "learning.training_steps"),
    *("--set", "logging.checkpoint_interval=1"),
)


def run_folders() -> Iterator[Case]:
    """Runs to resume whose files are damaged."""

    def harmed(at: Path, whole: Path, *, files: str, how: str) -> None:
        for path in copied(at, whole).glob(files):
            content = path.read_bytes()
            path.unlink()  # best.pt and last.pt may be links to the same file
            if how == "executable":
                torch.save({"format": 1, "actor": Executable()}, path)
            else:
                path.write_bytes(damaged(content, how))

    for how in (*ACCIDENTS, "executable"):
        last = partial(harmed, files="checkpoints/last.pt", how=how)
        every = partial(harmed, files="checkpoints/*.pt", how=how)
        yield Case(f"run: last checkpoint {how}", LONGER, (0,), prepare=last)
        yield Case(f"run: all checkpoints {how}", LONGER, named="checkpoint", prepare=every)
    for file in ("status.json", "environment.json", "summary.json", "config.yaml"):
        broken = partial(harmed, files=file, how="a text")
        yield Case(f"run: broken {file}", LONGER, (0,), prepare=broken)
    yield Case("run: in use", LONGER, named="whole", prepare=copied, drive=_while_locked)
    again = ("main", *TEST, "--run-name", "whole")
    yield Case("run: its name again", again, named="whole", prepare=copied)
    yield Case("run: other keys", RESUME, named="training_steps", prepare=copied)


def _while_locked(command: Sequence[str], at: Path) -> Ended:
    lock = RunLock(at / "runs" / "whole")
    try:
        return run(command, at)
    finally:
        lock.release()


# Disks ----------------------------------------------------------------------------------------

IN_NAMESPACE = ("unshare", "--map-root-user", "--mount")


def on_disk(command: Sequence[str], at: Path, disk: str) -> Ended:
    """Run a command with a disk mounted at `disk/`, in a namespace that ends with it."""
    if shutil.which("unshare") is None or subprocess.run((*IN_NAMESPACE, "true")).returncode:
        pytest.skip("this user cannot mount disks")
    (at / "disk").mkdir()
    script = f'mount -t tmpfs -o {disk} none "$0/disk" && cd "$0" && exec "$@"'
    return run([*IN_NAMESPACE, "sh", "-c", script, str(at), *command], at)


def disks() -> Iterator[Case]:
    """Disks that are full or read-only."""
    train = ("main", *TEST, "--run-name", "t", "--set", "logging.directory=disk/runs")
    fly = (*RANDOM, "--missions", "2", "--out", "disk/o")
    for name, disk, train_codes, fly_codes in (
        ("read-only", "ro", (2,), (2,)),
        ("full", "size=4k", (1, 2), (0, 1, 2)),
        ("nearly full", "size=300k", (0, 1, 2), (0, 1, 2)),
    ):
        drive = partial(on_disk, disk=disk)
        yield Case(f"disk: {name}, train", train, train_codes, drive=drive)
        yield Case(f"disk: {name}, evaluate", fly, fly_codes, drive=drive)


# Several commands and signals -----------------------------------------------------------------


def _two_at_once(command: Sequence[str], at: Path) -> Ended:
    """Start a command twice, of which one must win; return the error of the other."""
    both = [start(command, at) for _ in range(2)]
    said = [process.communicate()[1].decode() for process in both]
    codes = [process.returncode for process in both]
    if sorted(codes) != [0, 2]:
        return -signal.SIGABRT, f"exit codes {codes}: {said}"
    return 0, said[codes.index(2)]


LOADING = """
from marl_framework.main import command
print("loading", flush=True)
raise SystemExit(command())
"""


def _storm(command: Sequence[str], at: Path, numbers: Sequence[int], begin: bool) -> Ended:
    """Send many signals, while libraries load or from the start of the training; then resume.

    Nothing is sent during Python's own start, before it loads the program.

    Returns:
        The end of the training in the storm; SIGABRT if it could not be resumed.
    """
    moments = random.Random(len(numbers))
    python, _, _, *arguments = command
    process = start([python, "-u", "-c", LOADING, *arguments], at)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"loading" if begin else b"run folder:"):
            break
    while process.poll() is None:
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(moments.choice(numbers))
    said = process.communicate()[1].decode()
    code, after = run([*command, "--resume"], at)
    return (process.returncode, said) if code == 0 else (-signal.SIGABRT, f"not resumed: {after}")


def _nobody_reads(command: Sequence[str], at: Path) -> Ended:
    with start(command, at) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    return process.returncode, said


def _without_output(command: Sequence[str], at: Path) -> Ended:
    return run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command], at)


WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
URGENT = (signal.SIGINT, signal.SIGTERM)


def processes() -> Iterator[Case]:
    """Commands that meet each other or signals, or whose output nobody reads."""
    train = ("main", *TEST, "--run-name", "t")
    yield Case("two starts of one name", train, (0,), drive=_two_at_once)
    yield Case("two that resume", (*train, "--resume"), (0,), drive=_two_at_once)
    for numbers in (*((number,) for number in (*URGENT, *WARNINGS)), (*URGENT, *WARNINGS)):
        name = "+".join(signal.Signals(number).name for number in numbers)
        # Before a training has begun, signals except Ctrl-C end the process as usual.
        early = (130, *(-number for number in numbers if number != signal.SIGINT))
        # A signal may also arrive during a save (1), or after the training, while Python ends.
        late = (130, 0, 1, *(-number for number in numbers))
        for begin, codes in ((True, early), (False, late)):
            moment = "while it loads" if begin else "in the training"
            drive = partial(_storm, numbers=numbers, begin=begin)
            yield Case(f"storm of {name} {moment}", train, codes, drive=drive)
    fly = (*RANDOM, "--missions", "2")
    for kind, way in (("nobody reads", _nobody_reads), ("no output", _without_output)):
        yield Case(f"{kind}: train", train, (0,), drive=way)
        yield Case(f"{kind}: evaluate", fly, (0,), drive=way)
    yield Case("nobody reads: doctor", ("doctor", *TEST[:2]), (1,), drive=_nobody_reads)


def all_cases() -> list[Case]:
    """Return all cases."""
    groups = (checkpoints, run_folders, disks, processes)
    return [case for group in groups for case in group()]
