"""The commands of `tests.soak.hostile_commands`, generated from tables."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tests.soak.hostile_commands import OWNED, Case, Ended, environment, run

TEST = ("--config", "params_test.yaml", "--device", "cpu")
ANY_LINE = "error: "
DEPLOY = ("--set", "experiment.missions.mission_mode=deployment")


class Executable:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        """Return the call that makes the object."""
        return os.system, (f"touch {OWNED}",)


# Params files ---------------------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
PARAMS_FILES: Mapping[str, bytes] = {
    "empty": b"",
    "a bomb": BOMB.encode(),
    "a python tag": f"a: !!python/object/apply:os.system ['touch {OWNED}']\n".encode(),
    "broken": b"environment: [1",
    "a list": b"- 1\n- 2\n",
    "a number": b"7\n",
    "zero bytes": b"environment:\n  seed: \0\n",
    "no text": bytes(range(256)),
    "utf-16": "environment:\n  seed: 1\n".encode("utf-16"),
    "too large": b"# " + b"x" * 2**19,
    "deep": b"[" * 20_000,
    "tabs": b"environment:\n\tseed: 1\n",
    "a key twice": b"environment:\n  seed: 1\n  seed: 2\n",
    "an anchor in itself": b"environment: &a\n  seed: *a\n",
    "itself": b"extends: bad.yaml\n",
    "a missing base": b"extends: none.yaml\n",
    "a long number": b"extends: params_test.yaml\nenvironment:\n  seed: 1" + b"0" * 5000 + b"\n",
    "a date": b"extends: params_test.yaml\nenvironment:\n  seed: 2020-01-01\n",
}


def params_files() -> Iterator[Case]:
    """Params files that are none."""

    def written(at: Path, whole: Path, *, content: bytes) -> None:
        (at / "bad.yaml").write_bytes(content)

    def folder(at: Path, whole: Path) -> None:
        (at / "folder.yaml").mkdir()

    for name, content in PARAMS_FILES.items():
        yield Case(
            f"params file: {name}",
            ("main", "--config", "bad.yaml", "--device", "cpu", "--run-name", "t"),
            named="bad.yaml",
            prepare=partial(written, content=content),
        )
    yield Case("params file: a folder", ("main", "--config", "folder.yaml"), prepare=folder)


# Options --------------------------------------------------------------------------------------

OPTIONS: Mapping[str, tuple[tuple[str, ...], str]] = {
    **{
        f"--set {text}": (("main", *TEST, "--set", text), named)
        for text, named in {
            "learning.gamma=2": "learning.gamma",
            "learning.gamma=.nan": "learning.gamma",
            "learning.gama=0.9": "learning.gamma",
            "environment.num_envs=0": "num_envs",
            "environment.num_envs=-3": "num_envs",
            "environment.num_envs=many": "num_envs",
            "environment.num_envs=100000000": "num_envs",
            "environment.seed=1e99": "environment.seed",
            "experiment.missions.n_agents=1000": "n_agents",
            "networks=1": "networks",
            "learning": "learning",
            "=": "section.key=value",
            "experiment.algorithm=os.system": "os.system",
            "sensor.simulation.kinds=[nowhere.Terrain]": "nowhere.Terrain",
            "logging.directory=/proc/none": "logging.directory",
            "logging.directory=/dev/null": "logging.directory",
            "logging.writers=[paper]": "logging.writers",
        }.items()
    },
    **{
        f"--run-name {name[:20]!r}": (("main", *TEST, f"--run-name={name}"), "run name")
        for name in ("", "..", "../x", "a/b", "-x", "a b", "x" * 300, "\n", "ü")
    },
    **{
        " ".join(given): (("main", *TEST, *given), named)
        for given, named in {
            ("--device", "tpu"): "compute.device",
            ("--device", "cuda:99"): "compute.device",
            ("--config", "missing.yaml"): "missing.yaml",
            ("--profile", "-1"): "--profile",
            ("--profile", "x"): "--profile",
            ("--seeds", "3,3", "--run-name", "t"): "--seeds",
            ("--seeds", "3"): "--run-name",
            ("--resume",): "--run-name",
            ("--allow-changed", "x"): "--resume",
            ("--checkpoint", "missing.pt"): "missing.pt",
            ("--missions", "0"): "--missions",
            ("--no-such-option",): "--no-such-option",
        }.items()
    },
    **{
        " ".join(given): (given, named)
        for given, named in {
            ("evaluate",): "required",
            ("evaluate", *TEST, "--out", "o", "--policies", "nobody"): "nobody",
            ("evaluate", *TEST, "--out", "o", "--policies", "random,random"): "once",
            ("evaluate", *TEST, "--out", "o", "--policies", "learned"): "--checkpoint",
            ("evaluate", *TEST, "--out", "/proc/o", "--policies", "random"): "--out",
            ("evaluate", *TEST, "--out", "o", "--policies", "random", "--missions", "0"): "--miss",
            ("evaluate", *TEST, "--out", "o", "--policies", "random", "--agents", "x"): "--agents",
            ("evaluate", *TEST, "--out", "o", "--policies", "random", "--seed", "-1"): "--seed",
            ("evaluate", *TEST, "--out", "o", "--policies", "no.Planner"): "no.Planner",
            ("evaluate", *TEST, "--out", "o", "--policies", "random", "--terrain", "x"): "--terr",
            ("export", "--checkpoint", "x", "--format", "torch", "--out", "x.txt"): "--out",
            ("export", "--checkpoint", "x", "--format", "torch", "--out", "no/x.pt2"): "--out",
            ("history", "show", "../../etc"): "run name",
            ("history", "restore", "none/20260101T000000Z"): "none",
            ("history", "clean", "none", "--keep", "-1"): "--keep",
            ("history", "compare", "a", "b"): "a: no run",
        }.items()
    },
}  # fmt: skip


def options() -> Iterator[Case]:
    """Options and overrides that make no sense."""
    for name, (command, named) in OPTIONS.items():
        yield Case(f"options: {name}", command, named=named)


# Checkpoints ----------------------------------------------------------------------------------


def damaged(content: bytes, how: str) -> bytes:
    """Return the bytes of a checkpoint after an accident."""
    middle = len(content) // 2
    return {
        "empty": b"",
        "truncated": content[:middle],
        "a bit flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "zeros at its end": content[:-4096] + bytes(4096),
        "a text": b"hello\n" * 100,
        "twice": content * 2,
    }[how]


def swapped(at: Path, whole: Path, how: str) -> None:
    """Write `bad.pt`: a checkpoint that is none, or not of this team."""
    content = (whole / "checkpoints" / "last.pt").read_bytes()
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
        path.write_bytes(damaged(content, how))


ACCIDENTS = ("empty", "truncated", "a bit flipped", "zeros at its end", "a text", "twice")
SWAPS = (*ACCIDENTS, "executable", "executable in an archive", "another's", "a loop of links")
USES: Mapping[str, tuple[str, ...]] = {
    "evaluate": ("evaluate", "--checkpoint", "bad.pt", "--policies", "learned", "--out", "o"),
    "export": ("export", "--checkpoint", "bad.pt", "--format", "torch", "--out", "team.pt2"),
    "deploy": ("main", *TEST, *DEPLOY, "--checkpoint", "bad.pt", "--run-name", "t"),
}


def checkpoints() -> Iterator[Case]:
    """Checkpoints that are damaged, swapped or would run code."""
    for use, command in USES.items():
        for how in (*SWAPS, "a folder"):
            prepare = partial(swapped, how=how)
            yield Case(f"checkpoint: {use}, {how}", command, named="bad.pt", prepare=prepare)
    wrong = ("--set", "experiment.constraints.num_actions=9")
    for name, command in {
        "evaluate": ("evaluate", "--checkpoint", "runs/whole", *FLY_LEARNED, *wrong),
        "export": ("export", "--checkpoint", "runs/whole", *TO_FILE, *wrong),
    }.items():
        yield Case(f"checkpoint: {name}, of other actions", command, named="fit", prepare=copied)


FLY_LEARNED = ("--policies", "learned", "--out", "o")
TO_FILE = ("--format", "torch", "--out", "team.pt2")


def copied(at: Path, whole: Path) -> Path:
    """Copy the trained run; return the copy."""
    return Path(shutil.copytree(whole, at / "runs" / whole.name))


# Run folders ----------------------------------------------------------------------------------

RESUME = ("main", *TEST, "--run-name", "whole", "--resume", "--max-episodes", "5")
LONGER = (
    *(*RESUME, "--allow-changed", "learning.training_steps"),
    *("--set", "logging.checkpoint_interval=1"),
)


def run_folders() -> Iterator[Case]:
    """Runs to resume whose files have suffered."""

    def harmed(at: Path, whole: Path, *, files: str, how: str) -> None:
        for path in copied(at, whole).glob(files):
            content = path.read_bytes()
            path.unlink()  # best.pt and last.pt may be links to the same file
            path.write_bytes(damaged(content, how) if how != "executable" else content)
            if how == "executable":
                torch.save({"format": 1, "actor": Executable()}, path)

    for how in (*ACCIDENTS, "executable"):
        last = partial(harmed, files="checkpoints/last.pt", how=how)
        every = partial(harmed, files="checkpoints/*.pt", how=how)
        yield Case(f"run: last checkpoint {how}", LONGER, (0,), prepare=last)
        yield Case(f"run: all checkpoints {how}", LONGER, named="checkpoint", prepare=every)
    for file in ("status.json", "environment.json", "summary.json", "config.yaml"):
        broken = partial(harmed, files=file, how="a text")
        yield Case(f"run: broken {file}", LONGER, (0,), prepare=broken)
    yield Case("run: in use", LONGER, named="under way", prepare=copied, drive=_while_locked)
    again = ("main", *TEST, "--run-name", "whole")
    yield Case("run: its name again", again, named="whole", prepare=copied)
    yield Case("run: other keys", RESUME, named="training_steps", prepare=copied)


def _while_locked(command: Sequence[str], at: Path) -> Ended:
    from marl_framework.runs.lock import RunLock

    lock = RunLock(at / "runs" / "whole")
    try:
        return run(command, at)
    finally:
        lock.release()


# Rasters --------------------------------------------------------------------------------------

RASTERS: Mapping[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "a text": lambda path: path.write_bytes(b"hello"),
    "no pixels": lambda path: np.save(path, np.zeros((0, 0))),
    "one pixel": lambda path: np.save(path, np.ones((1, 1))),
    "nan": lambda path: np.save(path, np.full((200, 200), np.nan)),
    "infinite": lambda path: np.save(path, np.full((200, 200), np.inf)),
    "three axes": lambda path: np.save(path, np.zeros((4, 90, 90))),
    "complex": lambda path: np.save(path, np.zeros((200, 200), complex)),
    "texts": lambda path: np.save(path, np.full((200, 200), "x")),
    "objects": lambda path: np.save(path, np.array([[Executable()]], object), allow_pickle=True),
    "a lie about its size": lambda path: path.write_bytes(
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (999999, 999999), }".ljust(117)
        + b"\n"
    ),
    "a folder": lambda path: path.mkdir(),
    "a loop of links": lambda path: path.symlink_to(path),
}


def rasters() -> Iterator[Case]:
    """Maps that are none."""

    def made(at: Path, whole: Path, *, make: Callable[[Path], object]) -> None:
        make(at / "map.npy")

    settings = ("kinds=[raster]", "raster.path=map.npy", "raster.resolution=1.0")
    sets = [part for text in settings for part in ("--set", f"sensor.simulation.{text}")]
    command = ("main", *TEST, *sets, "--run-name", "t")
    for name, make in RASTERS.items():
        prepare = partial(made, make=make)
        yield Case(f"raster: {name}", command, named="map.npy", prepare=prepare)


# Disks ----------------------------------------------------------------------------------------


def on_disk(command: Sequence[str], at: Path, disk: str) -> Ended:
    """Run a command with `disk/` in its folder a disk of its own, which this process never sees."""
    (at / "disk").mkdir()
    # The mount belongs to the namespace and ends with it.
    script = f'mount -t tmpfs -o {disk} none "$0/disk" && cd "$0" && exec "$@"'
    return run(["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(at), *command], at)


def can_mount() -> bool:
    """Whether this user may mount a disk in a namespace."""
    command = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(command).returncode


def disks() -> Iterator[Case]:
    """Disks that are full or cannot be written, where this user may mount some."""
    if not can_mount():
        return
    read_only, full, small = "ro", "size=4k", "size=300k"
    train = ("main", *TEST, "--run-name", "t", "--set", "logging.directory=disk/runs")
    for name, disk, codes in (
        ("read-only", read_only, (2,)),
        ("full", full, (1, 2)),
        ("nearly full", small, (0, 1, 2)),
    ):
        yield Case(f"disk: {name}, train", train, codes, drive=partial(on_disk, disk=disk))
        fly = ("evaluate", *TEST, "--policies", "random", "--missions", "2", "--out", "disk/o")
        codes = (0, *codes) if disk == full else codes
        yield Case(f"disk: {name}, evaluate", fly, codes, drive=partial(on_disk, disk=disk))


# Several commands and signals -----------------------------------------------------------------


def _popen(command: Sequence[str], at: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=at, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _two_at_once(command: Sequence[str], at: Path) -> Ended:
    """Start a command twice; the first must win or lose, not both; return what the loser said."""
    both = [_popen(command, at) for _ in range(2)]
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

    Python's own start, before it knows which program it is to run, is left in peace.

    Returns:
        How the training ended in the storm; SIGABRT where it could not be resumed after it.
    """
    moments = random.Random(len(numbers))
    python, _, _, *arguments = command
    process = _popen([python, "-u", "-c", LOADING, *arguments], at)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"loading" if begin else b"run folder:"):
            break
    while process.poll() is None:
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(moments.choice(numbers))
    said = process.communicate()[1].decode()
    code, after = run([*command, "--resume"], at)
    if code != 0:
        return -signal.SIGABRT, f"not to be resumed: {after}"
    return process.returncode, said


def _nobody_reads(command: Sequence[str], at: Path) -> Ended:
    process = _popen(command, at)
    assert process.stdout is not None
    process.stdout.close()
    said = process.stderr.read().decode() if process.stderr is not None else ""
    return process.wait(), said


def _without_output(command: Sequence[str], at: Path) -> Ended:
    return run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command], at)


WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
URGENT = (signal.SIGINT, signal.SIGTERM)


def processes() -> Iterator[Case]:
    """Commands that meet each other, signals, or nobody who reads them."""
    train = ("main", *TEST, "--run-name", "t")
    yield Case("two starts of one name", train, (0,), drive=_two_at_once)
    yield Case("two that resume", (*train, "--resume"), (0,), drive=_two_at_once)
    for numbers in (*((number,) for number in (*URGENT, *WARNINGS)), (*URGENT, *WARNINGS)):
        name = "+".join(signal.Signals(number).name for number in numbers)
        # Before a training has begun, signals other than Ctrl-C end the process in their own way.
        early = (130, *(-number for number in numbers if number != signal.SIGINT))
        # One may also strike after the training, while Python ends.
        late = (130, 0, *(-number for number in numbers))
        for begin, codes in ((True, early), (False, late)):
            moment = "while it loads" if begin else "in the training"
            drive = partial(_storm, numbers=numbers, begin=begin)
            yield Case(f"storm of {name} {moment}", train, codes, drive=drive)
    fly = ("evaluate", *TEST, "--policies", "random", "--missions", "2", "--out", "o")
    yield Case("nobody reads: train", train, (0,), drive=_nobody_reads)
    yield Case("nobody reads: evaluate", fly, (0,), drive=_nobody_reads)
    yield Case("no output: train", train, (0,), drive=_without_output)
    yield Case("no output: evaluate", fly, (0,), drive=_without_output)
    yield Case("nobody reads: doctor", ("doctor", *TEST[:2]), (1,), drive=_nobody_reads)


def all_cases() -> list[Case]:
    """Return all cases."""
    groups = (params_files, options, checkpoints, run_folders, rasters, disks, processes)
    return [case for group in groups for case in group()]
