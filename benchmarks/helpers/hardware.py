"""What a machine can do, what it says that it does, and the memory that a benchmark takes."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.helpers.harness import fastest
from marl_framework.training.hardware import HardwareMonitor, Reader, gpu_readers

_PRODUCTS = 6  # that are timed; the first one warms up
_PERIOD = 0.2  # seconds between samples of what the machine reports
_CPU_TIMES = Path("/proc/stat")


# Memory -----------------------------------------------------------------------------------


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` start anew, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # what is resident now becomes the peak
    except OSError:
        return


def peak_memory(device: torch.device) -> int:
    """Return the most memory held so far [bytes]: on a GPU by tensors, on a CPU by the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _process_memory("VmHWM")


def held_memory(device: torch.device) -> int:
    """Return the memory held now [bytes]: on a GPU by tensors, on a CPU by the process."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _process_memory("VmRSS")


def _process_memory(name: str) -> int:
    """Return an entry of Linux's report on this process [bytes]."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


# Operations and utilisation ---------------------------------------------------------------


def peak_flops(device: torch.device, precision: torch.dtype) -> float:
    """Return the floating-point operations a second of large matrix products, the best of some.

    Args:
        device: that computes.
        precision: of the products, that of the networks.
    """
    side = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(side, side, device=device).to(precision) for _ in range(2))
    return 2 * side**3 / fastest(lambda: a @ b, _PRODUCTS, device)


class CpuReader:
    """Share of all cores that are busy, by whatever program: what system monitors show."""

    def __init__(self) -> None:
        self._idle, self._all = self._read()

    def __call__(self) -> dict[str, float]:
        """Return the share since the last call."""
        idle, total = self._read()
        passed = total - self._all
        share = 1 - (idle - self._idle) / passed if passed else 0.0
        self._idle, self._all = idle, total
        return {"utilization": share}

    @staticmethod
    def _read() -> tuple[int, int]:
        first = _CPU_TIMES.read_text(encoding="ascii").partition("\n")[0]
        ticks = [int(text) for text in first.split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)


def utilisation_monitor(device: torch.device) -> HardwareMonitor:
    """Return a monitor of what the machine reports as its utilisation, and what of it is real.

    Figures: `utilization` of the device (0 to 1); on GPUs that count them also `gpu_sm_activity`
    and `gpu_sm_occupancy`.
    """
    readers: list[Reader] = [CpuReader()]
    if device.type == "cuda":
        readers = [_renamed(reader) for reader in gpu_readers(device)]
    return HardwareMonitor(device, Path(), _PERIOD, readers)


def _renamed(reader: Reader) -> Reader:
    return lambda: {
        ("utilization" if name == "gpu_utilization" else name): value
        for name, value in reader().items()
    }


def utilisation(monitor: HardwareMonitor) -> dict[str, float | None]:
    """Return the figures of a monitor as a row has them; None where the machine has none."""
    found = monitor.summary()
    names = {"utilization": "reported", "gpu_sm_activity": "sm_activity",
             "gpu_sm_occupancy": "sm_occupancy"}  # fmt: skip
    row: dict[str, float | None] = {
        ours: found.get(name, {}).get("mean") for name, ours in names.items()
    }
    return {**row, "reported_peak": found.get("utilization", {}).get("max")}
