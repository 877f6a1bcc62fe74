"""Measurements of time, memory and utilisation, and a description of this machine.

A benchmark's JSON has `schema` (version of this layout), `suite`, `settings` (options and
configuration), `machine`, and the benchmark's lists of rows. It is strict JSON; see `files.strict`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks import COMMIT
from marl_framework.command_line import usable_cores
from marl_framework.device import describe_device, synchronize
from marl_framework.runs import files
from marl_framework.runs.folder import describe_environment
from marl_framework.training.hardware import HardwareMonitor, Reader, gpu_readers

SCHEMA = 1
CPU = torch.device("cpu")

_COPIED_BYTES = {"cpu": 2**28, "cuda": 2**31}  # far larger than any cache
_COPIES = 7
_PRODUCTS = 6  # number of timed matrix products; the first warms up
_MOST_REPEATS = 10_000
_PERIOD = 0.2  # time between samples of the utilisation [s]


# Timing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Duration of a function [s]: median and quartiles over repeats."""

    median: float
    lower: float
    upper: float
    repeats: int

    def per(self, items: int) -> Timing:
        """Return the duration per item if one repeat processes `items` items at once."""
        return Timing(self.median / items, self.lower / items, self.upper / items, self.repeats)

    def columns(self, repeats: str) -> dict[str, float]:
        """Return the quartiles and the number of repeats as columns of a row."""
        return {
            "lower_quartile": self.lower,
            "upper_quartile": self.upper,
            repeats: self.repeats,
        }


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return (lower quartile, median, upper quartile), interpolated linearly."""
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
    """Time `work()` until `seconds` are used up, at least `least` times.

    Args:
        work: function to time; the clock is read after the device has finished.
        seconds: time budget without warm-up.
        device: device that `work` uses.
        warm_up: number of untimed calls at the start.
        least: minimum number of repeats.
        clock: function that returns the time [s].
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
    """Limit PyTorch, and the compiled loops that follow its setting, to `number` CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fastest(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the shortest duration of `work()` over `repeats` calls [s]."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def memory_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Return the memory bandwidth [bytes/s] of copies of `size` random bytes (read and write)."""
    size = size or _COPIED_BYTES[device.type]
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    copies = 8 if device.type == "cuda" else 1  # number of copies without a wait in between

    def copy() -> None:
        for _ in range(copies):
            target.copy_(source)

    return 2 * size * copies / fastest(copy, _COPIES, device)


def peak_flops(device: torch.device, precision: torch.dtype) -> float:
    """Return the operations per second of large matrix products (the fastest of several)."""
    side = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(side, side, device=device).to(precision) for _ in range(2))
    return 2 * side**3 / fastest(lambda: a @ b, _PRODUCTS, device)


# Memory -----------------------------------------------------------------------------------


def reset_peak_memory(device: torch.device) -> None:
    """Reset `peak_memory` if the system supports it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resident memory becomes the peak


def peak_memory(device: torch.device) -> int:
    """Return the peak memory [bytes] of tensors (GPU) or of this process (CPU)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return process_memory("VmHWM")


def process_memory(name: str) -> int:
    """Return a field of /proc/self/status, such as VmRSS [bytes]."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    match = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"/proc/self/status has no {name}")
    return int(match[1]) * 1024


# Utilisation ------------------------------------------------------------------------------

UTILISATION = {
    "utilization": "reported",
    "gpu_sm_activity": "sm_activity",
    "gpu_sm_occupancy": "sm_occupancy",
}
"""Column name for each figure of `utilisation_monitor`."""


class CpuReader:
    """Reads the share of all cores that are busy with any program, as in system monitors."""

    def __init__(self, times: Path = Path("/proc/stat")) -> None:
        self._times = times
        self._idle, self._all = self._read()

    def __call__(self) -> dict[str, float]:
        """Return the share since the previous call."""
        idle, total = self._read()
        passed = total - self._all
        share = 1 - (idle - self._idle) / passed if passed else 0.0
        self._idle, self._all = idle, total
        return {"utilization": share}

    def _read(self) -> tuple[int, int]:
        first = self._times.read_text(encoding="ascii").partition("\n")[0]
        ticks = [int(text) for text in first.split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)


def utilisation_monitor(device: torch.device) -> HardwareMonitor:
    """Return a monitor of the device's reported utilisation.

    Figures: `utilization` of the device (0 to 1); also `gpu_sm_activity` and `gpu_sm_occupancy` on
    GPUs that report them.
    """
    readers: list[Reader] = [CpuReader()]
    if device.type == "cuda":
        readers = [_rename_utilization(reader) for reader in gpu_readers(device)]
    return HardwareMonitor(device, Path(), _PERIOD, readers)


def _rename_utilization(reader: Reader) -> Reader:
    return lambda: {
        ("utilization" if name == "gpu_utilization" else name): value
        for name, value in reader().items()
    }


def utilisation(monitor: HardwareMonitor) -> dict[str, float | None]:
    """Return a monitor's mean figures, and the peak utilisation, as columns of a row.

    Figures that the machine does not report are None.
    """
    summary = monitor.summary()
    means = {column: summary.get(name, {}).get("mean") for name, column in UTILISATION.items()}
    return {**means, "reported_peak": summary.get("utilization", {}).get("max")}


# The machine ------------------------------------------------------------------------------


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return hardware, memory bandwidth, versions, commit and command."""
    environment = describe_environment(device)
    devices = {str(d): d for d in (CPU, device)}
    return {
        **environment,
        "commit": environment["commit"] or os.environ.get(COMMIT),
        # The interpreter's path is omitted; the versions are more informative.
        "command": shlex.join(["python", *without_folders(sys.orig_argv[1:])]),
        "cpu": describe_device(CPU),
        "load_average": round(os.getloadavg()[0], 2),
        "torch_threads": torch.get_num_threads(),
        "memory_bandwidth": {name: memory_bandwidth(d) for name, d in devices.items()},
        "versions": {**environment["versions"], "opencv": cv2.__version__},
    }


def without_folders(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with absolute paths reduced to the file name."""
    return [re.sub(r"(^|[=,])/[^=,]*/", r"\1", argument) for argument in arguments]


def announce_machine(device: torch.device) -> dict[str, Any]:
    """Print the device, warn if other programs are running, and return `describe_machine`."""
    print(describe_device(device), flush=True)
    machine = describe_machine(device)
    load, cores = machine["load_average"], usable_cores()
    if load > 0.5 * cores:
        print(
            f"warning: the machine is busy (load {load:g} on {cores} cores); parallel work will "
            "seem too slow",
            file=sys.stderr,
        )
    return machine


def device_slug(device: torch.device) -> str:
    """Return a word for file names, such as `nvidia-h200` or `amd-epyc-2-cores`."""
    text = describe_device(device).partition(": ")[2]
    if device.type == "cuda":
        text = text.rpartition(",")[0]  # drop the memory size
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def write_json(path: Path, suite: str, content: Mapping[str, Any]) -> None:
    """Write a benchmark's results as strict JSON, atomically."""
    files.write_json(path, {"schema": SCHEMA, "suite": suite, **content})
