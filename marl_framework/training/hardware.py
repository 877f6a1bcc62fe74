"""Figures of GPU and host during a training run, sampled in a thread."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import torch

_GIB = 2**30
_STATM = Path("/proc/self/statm")
_GPM = {"gpu_sm_activity": 2, "gpu_sm_occupancy": 3, "gpu_memory_bandwidth": 10}  # NVML's ids

Reader = Callable[[], Mapping[str, float]]


class HardwareMonitor:
    """Samples figures in a thread; where a chip or driver lacks one, it is left out.

    Args:
        device: that computes; on a CPU only the host is watched.
        folder: whose disk is watched.
        period: time between samples [s].
        readers: what is sampled; GPU and host by default.
    """

    def __init__(
        self,
        device: torch.device,
        folder: Path,
        period: float = 1.0,
        readers: list[Reader] | None = None,
    ) -> None:
        self._readers: list[Reader] = (
            [*gpu_readers(device), HostReader(folder)] if readers is None else list(readers)
        )
        self._period = period
        self._guard = threading.Lock()
        self._recent: dict[str, list[float]] = {}
        self._total: dict[str, tuple[float, int, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def sample(self) -> None:
        """Take one sample of everything."""
        found: dict[str, float] = {}
        for reader in list(self._readers):
            try:
                found.update(reader())
            except Exception:  # a driver that fails once will do so again; training goes on
                self._readers.remove(reader)
        with self._guard:
            for name, value in found.items():
                self._recent.setdefault(name, []).append(value)
                total, count, most = self._total.get(name, (0.0, 0, value))
                self._total[name] = (total + value, count + 1, max(most, value))

    def means(self) -> dict[str, float]:
        """Return the means since the last call, by name of `logging.METRICS`."""
        with self._guard:
            recent, self._recent = self._recent, {}
        return {name: sum(values) / len(values) for name, values in recent.items()}

    def summary(self) -> dict[str, dict[str, float]]:
        """Return mean and maximum of each figure over all samples."""
        with self._guard:
            return {
                name: {"mean": total / count, "max": most}
                for name, (total, count, most) in self._total.items()
            }

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            self.sample()


class HostReader:
    """Cores that this process keeps busy, its memory [GiB], space left on the disk [GiB]."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at, self._spent = time.monotonic(), cpu_seconds()

    def __call__(self) -> dict[str, float]:
        """Return the figures since the last call."""
        found: dict[str, float] = {}
        now, spent = time.monotonic(), cpu_seconds()
        if now > self._at:
            found["host_cpu"] = (spent - self._spent) / (now - self._at)
        self._at, self._spent = now, spent
        with suppress(OSError, ValueError, IndexError):
            pages = int(_STATM.read_text(encoding="ascii").split()[1])
            found["host_memory"] = pages * os.sysconf("SC_PAGE_SIZE") / _GIB
        with suppress(OSError):
            found["host_disk_free"] = shutil.disk_usage(self._folder).free / _GIB
        return found


def cpu_seconds() -> float:
    """Return the CPU time of this process so far [s]."""
    times = os.times()
    return times.user + times.system


def gpu_readers(device: torch.device) -> list[Reader]:
    """Return readers of a GPU's figures; none without a GPU, NVML or the right to ask it."""
    if device.type != "cuda":
        return []
    try:
        import pynvml  # here, so that machines without NVIDIA's driver need it not

        pynvml.nvmlInit()
        identity = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(
            identity if identity.startswith(("GPU-", "MIG-")) else f"GPU-{identity}"
        )
    except Exception:  # whatever the driver says: figures are an extra
        return []
    readers: list[Reader] = [
        lambda: {"gpu_memory": pynvml.nvmlDeviceGetMemoryInfo(handle).used / _GIB},
        lambda: {"gpu_utilization": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
        lambda: {"gpu_power": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000},
    ]
    with suppress(Exception):
        readers.append(_GpmReader(pynvml, handle))
    return readers


class _GpmReader:
    """SM activity, SM occupancy and memory bandwidth, as shares; Hopper and newer report them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise RuntimeError("this chip has no such counters")
        self._nvml, self._handle = nvml, handle
        self._earlier, self._later = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._earlier)

    def __call__(self) -> dict[str, float]:
        nvml = self._nvml
        nvml.nvmlGpmSampleGet(self._handle, self._later)
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(_GPM)
        query.sample1, query.sample2 = self._earlier, self._later
        for index, metric in enumerate(_GPM.values()):
            query.metrics[index].metricId = metric
        nvml.nvmlGpmMetricsGet(query)
        self._earlier, self._later = self._later, self._earlier
        return {
            name: query.metrics[index].value / 100
            for index, name in enumerate(_GPM)
            if query.metrics[index].nvmlReturn == 0
        }
