"""Commands of the package in new processes, and damaged files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMES = int(os.environ.get("SOAK", "1"))
"""Factor of the numbers of trainings and files; `make soak SOAK=100` runs for hours."""
_PATIENCE = 300  # seconds

Ended = tuple[int, str]
"""Exit code, negative for a signal, and the text on standard error."""


def environment() -> dict[str, str]:
    """Return the environment of commands: this checkout's package, one thread."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def start(command: Sequence[str], at: Path) -> subprocess.Popen[bytes]:
    """Start a command in a folder, with pipes for its output."""
    return subprocess.Popen(
        command,
        cwd=at,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
    )


def run(command: Sequence[str], at: Path) -> Ended:
    """Run a command in a folder to its end."""
    done = subprocess.run(
        command,
        cwd=at,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_PATIENCE,
    )
    return done.returncode, done.stderr.decode(errors="replace")


def training(name: str, *settings: str) -> list[str]:
    """Return the command of a short training in `runs/` that saves after each step."""
    sets = ("logging.checkpoint_interval=1", *settings)
    return [
        *(sys.executable, "-u", "-m", "marl_framework.main", "--config", "params_test.yaml"),
        *("--device", "cpu", "--run-name", name),
        *(part for text in sets for part in ("--set", text)),
    ]


ACCIDENTS = ("empty", "truncated", "a bit flipped", "zeros at its end", "a text", "twice")


def damaged(content: bytes, how: str) -> bytes:
    """Return the bytes of a file after one of `ACCIDENTS`."""
    middle = len(content) // 2
    return {
        "empty": b"",
        "truncated": content[:middle],
        "a bit flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "zeros at its end": content[:-4096] + bytes(4096),
        "a text": b"hello\n" * 100,
        "twice": content * 2,
    }[how]
