"""Hardware metrics of GPU and host during a training run, sampled in a thread."""

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
_GPM = {"gpu_sm_activity": 2, "gpu_sm_occupancy": 3, "gpu_memory_bandwidth": 10}  # NVML's IDs

Reader = Callable[[], Mapping[str, float]]


class HardwareMonitor:
    """Samples hardware metrics in a thread; metrics that chip or driver lack are omitted.

    With a CPU as `device`, only host metrics are sampled. `folder` lies on the disk to monitor;
    `period` is the time between samples [s]. `readers` return metrics, by default `gpu_readers` and
    `HostReader`.
    """

    def __init__(
        self,
        device: torch.device,
        folder: Path,
        period: float = 1.0,
        readers: list[Reader] | None = None,
    ) -> None:
        self._readers: list[Reader] = list(readers or [*gpu_readers(device), HostReader(folder)])
        self._period = period
        self._guard = threading.Lock()
        self._recent: dict[str, list[float]] = {}
        self._total: dict[str, tuple[float, int, float]] = {}  # sum, number, maximum
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def sample(self) -> None:
        """Sample all metrics once."""
        values: dict[str, float] = {}
        for reader in list(self._readers):
            try:
                values.update(reader())
            except Exception:  # a driver that fails once would fail again
                self._readers.remove(reader)
        with self._guard:
            for name, value in values.items():
                self._recent.setdefault(name, []).append(value)
                total, count, largest = self._total.get(name, (0.0, 0, value))
                self._total[name] = (total + value, count + 1, max(largest, value))

    def means(self) -> dict[str, float]:
        """Return the means since the last call, by name in `logging.METRICS`."""
        with self._guard:
            recent, self._recent = self._recent, {}
        return {name: sum(values) / len(values) for name, values in recent.items()}

    def summary(self) -> dict[str, dict[str, float]]:
        """Return mean and maximum of each metric over all samples."""
        with self._guard:
            totals = self._total.copy()
        return {name: {"mean": s / n, "max": largest} for name, (s, n, largest) in totals.items()}

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            self.sample()


class HostReader:
    """Reads this process's busy cores and memory [GiB], and the free disk space [GiB]."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at, self._spent = time.monotonic(), time.process_time()

    def __call__(self) -> dict[str, float]:
        """Return the metrics; `host_cpu` is the mean since the last call."""
        values: dict[str, float] = {}
        now, spent = time.monotonic(), time.process_time()
        if now > self._at:
            values["host_cpu"] = (spent - self._spent) / (now - self._at)
        self._at, self._spent = now, spent
        with suppress(OSError, ValueError, IndexError):
            pages = int(_STATM.read_text(encoding="ascii").split()[1])
            values["host_memory"] = pages * os.sysconf("SC_PAGE_SIZE") / _GIB
        with suppress(OSError):
            values["host_disk_free"] = shutil.disk_usage(self._folder).free / _GIB
        return values


def gpu_readers(device: torch.device) -> list[Reader]:
    """Return readers of a GPU's metrics; empty without a GPU, NVML or permission to query it."""
    if device.type != "cuda":
        return []
    try:
        import pynvml  # imported here, because machines without NVIDIA's driver may lack it

        pynvml.nvmlInit()
        handle = nvml_handle(pynvml, device)
    except Exception:  # metrics are optional, so ignore any error of the driver
        return []
    readers: list[Reader] = [
        lambda: {"gpu_memory": pynvml.nvmlDeviceGetMemoryInfo(handle).used / _GIB},
        lambda: {"gpu_utilization": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
        lambda: {"gpu_power": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000},
    ]
    with suppress(Exception):
        readers.append(_gpm_reader(pynvml, handle))
    return readers


def nvml_handle(nvml: Any, device: torch.device) -> Any:
    """Return NVML's handle of a GPU; its numbers are not PyTorch's (CUDA_VISIBLE_DEVICES)."""
    identity = str(torch.cuda.get_device_properties(device).uuid)
    prefix = "" if identity.startswith(("GPU-", "MIG-")) else "GPU-"
    return nvml.nvmlDeviceGetHandleByUUID(f"{prefix}{identity}")


def _gpm_reader(nvml: Any, handle: Any) -> Reader:
    """Build a reader of SM activity, SM occupancy and memory bandwidth, as shares (Hopper up)."""
    if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise RuntimeError("this chip has no GPM counters")
    samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    nvml.nvmlGpmSampleGet(handle, samples[0])

    def read() -> dict[str, float]:
        nvml.nvmlGpmSampleGet(handle, samples[1])
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(_GPM)
        query.sample1, query.sample2 = samples
        for metric, number in zip(query.metrics, _GPM.values(), strict=False):
            metric.metricId = number
        nvml.nvmlGpmMetricsGet(query)
        samples.reverse()
        metrics = zip(_GPM, query.metrics, strict=False)
        return {name: metric.value / 100 for name, metric in metrics if metric.nvmlReturn == 0}

    return read
