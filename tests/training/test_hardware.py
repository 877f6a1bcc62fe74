from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from marl_framework.training import hardware
from marl_framework.training.hardware import HardwareMonitor, HostReader, gpu_readers
from marl_framework.training.logging import METRICS

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_means_start_anew_and_the_summary_goes_on(tmp_path: Path) -> None:
    rows = [{"gpu_power": 100.0}, {"gpu_power": 300.0, "host_cpu": 1.0}, {"gpu_power": 50.0}]
    waiting = iter(rows)
    monitor = HardwareMonitor(CPU, tmp_path, readers=[lambda: next(waiting)])
    monitor.sample()
    monitor.sample()
    assert monitor.means() == {"gpu_power": 200.0, "host_cpu": 1.0}
    assert monitor.means() == {}
    monitor.sample()
    assert monitor.means() == {"gpu_power": 50.0}
    assert monitor.summary() == {
        "gpu_power": {"mean": 150.0, "max": 300.0},
        "host_cpu": {"mean": 1.0, "max": 1.0},
    }


def test_the_thread_samples_until_the_end(tmp_path: Path) -> None:
    seen = threading.Event()

    def read() -> dict[str, float]:
        seen.set()
        return {"host_cpu": 2.0}

    before = threading.active_count()
    with HardwareMonitor(CPU, tmp_path, period=0.001, readers=[read]) as monitor:
        assert seen.wait(20)
    assert threading.active_count() == before
    assert monitor.means() == {"host_cpu": 2.0}


def test_a_reader_that_fails_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    calls = []

    def fail() -> dict[str, float]:
        calls.append(1)
        raise OSError("driver gone")

    monitor = HardwareMonitor(CPU, tmp_path, readers=[fail, lambda: {"host_cpu": 1.0}])
    monitor.sample()
    monitor.sample()
    assert len(calls) == 1
    assert monitor.means() == {"host_cpu": 1.0}


def test_the_host_is_watched(tmp_path: Path) -> None:
    found = HostReader(tmp_path)()
    assert set(found) <= set(METRICS)
    assert 0 < found["host_memory"] < 1000
    assert found["host_disk_free"] > 0
    assert found["host_cpu"] >= 0


def fake_gpu(monkeypatch: pytest.MonkeyPatch, counters: bool) -> SimpleNamespace:
    """Put a stand-in for pynvml on a machine with one GPU; return it."""
    asked: list[str] = []

    def measure(query: Any) -> None:
        assert query.sample1
        assert query.sample2
        for metric in query.metrics[: query.numMetrics]:
            metric.value = 10.0 * metric.metricId
            metric.nvmlReturn = 0 if metric.metricId != 3 else 3  # occupancy is not reported

    nvml = SimpleNamespace(
        NVML_GPM_METRICS_GET_VERSION=1,
        asked=asked,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=asked.append,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=3 * 2**30),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=40),
        nvmlDeviceGetPowerUsage=lambda _: 250_000,
        nvmlGpmQueryDeviceSupport=lambda _: SimpleNamespace(isSupportedDevice=int(counters)),
        nvmlGpmSampleAlloc=list,
        nvmlGpmSampleGet=lambda _, sample: sample.append(1),
        c_nvmlGpmMetricsGet_t=lambda: SimpleNamespace(
            metrics=[SimpleNamespace() for _ in range(9)]
        ),
        nvmlGpmMetricsGet=measure,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(hardware.torch.cuda, "get_device_properties", lambda _: properties)
    return nvml


@pytest.mark.parametrize("counters", [True, False])
def test_a_gpu_is_watched_as_far_as_it_reports(monkeypatch, counters: bool) -> None:
    nvml = fake_gpu(monkeypatch, counters)
    found: dict[str, float] = {}
    for reader in gpu_readers(GPU):
        assert reader().keys() == reader().keys()
        found |= reader()
    assert nvml.asked == ["GPU-1234"]
    expected = {"gpu_memory": 3.0, "gpu_utilization": 0.4, "gpu_power": 250.0}
    if counters:
        expected |= {"gpu_sm_activity": 0.2, "gpu_memory_bandwidth": 1.0}
    assert found == expected
    assert set(found) <= set(METRICS)


def test_without_a_gpu_or_its_driver_there_is_silence(monkeypatch, capsys) -> None:
    assert gpu_readers(CPU) == []
    nvml = fake_gpu(monkeypatch, True)
    nvml.nvmlInit = lambda: 1 / 0
    assert gpu_readers(GPU) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises
    assert gpu_readers(GPU) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.gpu
def test_a_real_gpu_reports() -> None:
    found: dict[str, float] = {}
    for reader in gpu_readers(GPU):
        found |= reader()
    assert found["gpu_memory"] > 0
