"""How benchmarks measure and report: timing, the machine, memory bandwidth, tables, JSON.

A benchmark's JSON has `schema` (version of this layout), `suite`, `settings` (what was asked
for), `machine` (what it ran on), and its own lists of rows. It is strict JSON, see `files.strict`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_framework.device import describe_device, synchronize, usable_cores
from marl_framework.runs import files
from marl_framework.runs.folder import describe_environment

SCHEMA = 1
CPU = torch.device("cpu")

_COPIED_BYTES = 2**28  # far larger than any cache
_COPIES = 7
_MOST_REPEATS = 10_000


# Timing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """How long something takes [s]: the median over repeats, and their quartiles."""

    median: float
    lower: float
    upper: float
    repeats: int

    def per(self, items: int) -> Timing:
        """Return the same for one of `items` things that were done at once."""
        return Timing(self.median / items, self.lower / items, self.upper / items, self.repeats)


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return (lower quartile, median, upper quartile), linear between order statistics."""
    if not samples:
        raise ValueError("no samples, no quartiles")
    lower, median, upper = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    return lower, median, upper


def measure(
    work: Callable[[], object],
    seconds: float,
    device: torch.device = CPU,
    *,
    warm_up: int = 1,
    least: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time `work()` again and again until `seconds` are used up, at least `least` times.

    Args:
        work: what is timed; the device has finished it when the clock is read.
        seconds: time budget, warm-up not counted.
        device: where the work is done.
        warm_up: calls before the first one that counts.
        least: repeats even when the budget is used up.
        clock: returns seconds.
    """
    for _ in range(warm_up):
        work()
    synchronize(device)
    samples: list[float] = []
    used = 0.0
    while (used < seconds or len(samples) < least) and len(samples) < _MOST_REPEATS:
        start = clock()
        work()
        synchronize(device)
        samples.append(clock() - start)
        used += samples[-1]
    lower, median, upper = quartiles(samples)
    return Timing(median, lower, upper, len(samples))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let PyTorch, and the compiled loops that follow it, use so many threads of the CPU."""
    usual = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def fastest(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the time of the fastest of some repeats of `work()` [s]."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def memory_bandwidth(device: torch.device, size: int = _COPIED_BYTES) -> float:
    """Return bytes read plus written a second by a large copy: the best of some tries."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * size / fastest(lambda: target.copy_(source), _COPIES, device)


def in_fresh_process(work: Callable[[], Any]) -> Any:
    """Return what a picklable function returns in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work).result()


# The machine ------------------------------------------------------------------------------


def free_memory(device: torch.device) -> int:
    """Return the memory [bytes] that the device has to give; of a CPU, most of what it has."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(0.7 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return what figures depend on: hardware, bandwidth, versions, commit, command."""
    environment = describe_environment(device)
    devices = {str(d): d for d in (CPU, device)}
    return {
        **environment,
        # The interpreter's own path says nothing that the versions do not.
        "command": shlex.join(["python", *without_folders(sys.orig_argv[1:])]),
        "cpu": describe_device(CPU),
        "load_average": round(os.getloadavg()[0], 2),
        "torch_threads": torch.get_num_threads(),
        "memory_bandwidth": {name: memory_bandwidth(d) for name, d in devices.items()},
        "versions": {**environment["versions"], "opencv": _opencv_version()},
    }


def without_folders(arguments: Sequence[str]) -> list[str]:
    """Return arguments with absolute paths cut to their last part: no other machine has them."""
    return [re.sub(r"(^|[=,])/[^=,]*/", r"\1", argument) for argument in arguments]


def _opencv_version() -> str | None:
    """Return the version of OpenCV, whichever distribution brings it; None where none does."""
    for name in ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless",
                 "opencv-contrib-python"):  # fmt: skip
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def announce_machine(device: torch.device) -> dict[str, Any]:
    """Print the device, warn where other programs are running; return `describe_machine`."""
    print(describe_device(device), flush=True)
    machine = describe_machine(device)
    load, cores = machine["load_average"], usable_cores()
    if load > 0.5 * cores:
        print(
            f"warning: the machine is busy (load {load:g} on {cores} cores); parallel work waits "
            "for its slowest thread and looks slower than it is",
            file=sys.stderr,
        )
    return machine


def device_slug(device: torch.device) -> str:
    """Return a word for file names, such as `nvidia-h200` or `amd-epyc-2-cores`."""
    text = describe_device(device).partition(": ")[2]
    if device.type == "cuda":
        text = text.rpartition(",")[0]  # without its memory
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


# Results and tables -----------------------------------------------------------------------


def write_json(path: Path, suite: str, content: Mapping[str, Any]) -> None:
    """Write a benchmark's results as strict JSON, whole or not at all."""
    files.write_json(path, {"schema": SCHEMA, "suite": suite, **content})


def table_text(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text; the first column is left-aligned, the others right."""
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for number, name in enumerate(header):  # Text: brackets are no markup
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    buffer = StringIO()
    Console(file=buffer, width=300, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def duration_text(seconds: float | None) -> str:
    """Return a duration with three digits and a unit; a dash where there is none."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"−{duration_text(-seconds)}"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{seconds / size:.3g}") >= 1:  # 999.6 µs are 1 ms
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def quartiles_text(row: Mapping[str, Any]) -> str:
    """Return the range between the quartiles of a row."""
    return f"{duration_text(row['lower_quartile'])} … {duration_text(row['upper_quartile'])}"


def number_text(value: float | None, form: str = ".3g", unit: str = "") -> str:
    """Return a number in a format, a dash where there is none."""
    return "–" if value is None else f"{value:{form}}{unit}"
