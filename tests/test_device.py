import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from marl_framework import device as device_module
from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.learning import ComputeConfig
from marl_framework.device import (
    as_device,
    autocast,
    configure_backends,
    describe_device,
    grad_scaler,
    resolve_device,
    resolve_precision,
    synchronize,
    unused_gpu,
)
from marl_framework.main import main
from marl_framework.training.ranks import Ranks
from tests.soak.commands import training
from tests.training import two_ranks

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
META = torch.device("meta")


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Backend switches belong to the process: put them back to PyTorch's defaults."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    configure_backends(ComputeConfig(cudnn_benchmark=False), GPU)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [
        ("auto", 0, "cpu"),
        ("auto", 1, "cuda:0"),
        ("auto", 4, "cuda:0"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("cuda:0", 1, "cuda:0"),
        ("cuda:3", 4, "cuda:3"),
    ],
)
def test_a_name_resolves_to_a_device_that_exists(monkeypatch, name, gpus, expected) -> None:
    pretend_gpus(monkeypatch, gpus)
    assert str(resolve_device(name)) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "present"),
    [("cuda", 0, ""), ("cuda:0", 0, ""), ("cuda:1", 1, "cuda:0"), ("cuda:4", 4, "cuda:3")],
)
def test_a_missing_gpu_is_one_line_that_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, present: str
) -> None:
    pretend_gpus(monkeypatch, gpus)
    with pytest.raises(ConfigError, match=rf"^compute\.device: {name} .*{present}"):
        resolve_device(name)
    with pytest.raises(ConfigError, match=rf"^device: {name} .*{present}"):
        as_device(name)


def test_a_cpu_build_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ConfigError, match="built for CPUs"):
        resolve_device("cuda")


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an NVIDIA GPU and a driver for CUDA 12.2, where PyTorch 13.0 finds no GPU."""
    pretend_gpus(monkeypatch, 0)
    (tmp_path / "nvidia0").touch()
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "535.104.05",
        nvmlSystemGetCudaDriverVersion=lambda: 12020,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(device_module, "DEVICES", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.usefixtures("automatic", "granted")
def test_a_driver_that_is_too_old_is_told() -> None:
    reason = unused_gpu()
    assert all(part in reason for part in ("535.104.05", "CUDA 12", "CUDA 13.0"))
    with pytest.warns(ConfigWarning, match=rf"^compute\.device: .*{re.escape(reason)}$"):
        assert resolve_device("auto") == CPU
    with pytest.raises(ConfigError, match=re.escape(reason)):
        resolve_device("cuda")


@pytest.mark.usefixtures("automatic", "granted")
@pytest.mark.parametrize(("rank", "lines"), [(None, 1), ("0", 1), ("1", 0)])
def test_one_rank_says_it_in_one_line(monkeypatch, capfd, rank, lines) -> None:
    if rank is not None:
        monkeypatch.setattr(Ranks, "of", lambda: Ranks(int(rank), 2, int(rank), 2))
        monkeypatch.setattr("marl_framework.training.team.train", lambda *_, **__: 0)
    assert main(["--config", "params_test.yaml", "--check"]) == 0
    said = capfd.readouterr().err.splitlines()
    assert [line.startswith("warning: compute.device: ") for line in said] == lines * [True]


@pytest.mark.usefixtures("automatic")
def test_a_mac_takes_the_cpu_and_says_so(monkeypatch) -> None:
    pretend_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.warns(ConfigWarning, match=r"^compute\.device: .*Apple"):
        assert resolve_device("auto") == CPU


@pytest.mark.usefixtures("granted")
def test_a_gpu_that_cannot_be_used_has_a_reason_without_nvml(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "CUDA 13.0" in unused_gpu()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built for CPUs" in unused_gpu()


@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize("why", ["no device", "hidden", "hip", "works"])
def test_a_gpu_that_is_used_or_not_meant_is_no_warning(granted, monkeypatch, why) -> None:
    if why == "no device":  # a container without a GPU on a host that has one
        (granted / "nvidia0").unlink()
        (granted / "nvidiactl").touch()
    elif why == "hidden":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    elif why == "hip":
        monkeypatch.setattr(torch.version, "hip", "6.0")
    else:
        pretend_gpus(monkeypatch, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_device("auto")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "cuda:1x", "mps"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^compute\.device: {name!r} "):
        resolve_device(name)


def test_devices_are_described_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150_110_011_392)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert describe_device(GPU).endswith("NVIDIA H200, 139.8 GiB")
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU 9\n", encoding="utf-8")
    monkeypatch.setattr(device_module, "CPUINFO", info)
    for cores, text in (({0}, "1 core"), ({0, 3}, "2 cores")):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: cores, raising=False)
        assert describe_device(CPU).endswith(f"Some CPU 9, {text}")
    info.unlink()
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert "arm64, " in describe_device(CPU)
    assert "meta" in describe_device(META)


def test_what_tests_train_is_on_the_cpu(monkeypatch, capsys) -> None:
    pretend_gpus(monkeypatch, 1)
    for command in (two_ranks.arguments(Path("runs"), "t"), training("t")):
        assert main([*command[command.index("--config") :], "--print-config"]) == 0
        assert "device: cpu" in capsys.readouterr().out
    with pytest.raises(pytest.fail.Exception, match="--device cpu"):
        main(["--config", "params_test.yaml", "--check"])


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((12, 0), torch.bfloat16)],
)
def test_auto_precision_of_a_gpu_follows_its_compute_capability(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", GPU) == expected


@pytest.mark.parametrize(
    ("capabilities", "text", "has_bfloat16"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, None, False),
        ({"avx512_bf16": True}, None, True),
        ({"avx512_bf16": False, "amx_bf16": True}, None, True),
        ({"architecture": "aarch64", "neon": True, "bf16": True}, None, True),
        ({"architecture": "aarch64", "neon": True, "bf16": False}, None, False),
        ({"cpu_name": "bf16", "num_sockets": 1}, None, False),
        # older releases of PyTorch do not report capabilities, the kernel does
        (None, "flags\t\t: fpu avx2 avx512f avx512_bf16 vaes\n", True),
        (None, "flags\t\t: fpu avx2 avx512f\nbugs : avx512_bf16\n", False),
        (None, "Features\t: fp asimd bf16 i8mm\n", True),
        (None, "flags\t\t:\n", False),
        (None, None, False),
    ],
)
def test_auto_precision_of_a_cpu_is_bfloat16_only_in_hardware(
    monkeypatch, tmp_path, capabilities, text, has_bfloat16
) -> None:
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text, encoding="utf-8")
    monkeypatch.setattr(device_module, "CPUINFO", info)
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    expected = torch.bfloat16 if has_bfloat16 else torch.float32
    assert resolve_precision("auto", CPU) == expected


def test_a_named_precision_is_taken_where_it_works() -> None:
    for name in ("float32", "bfloat16", "float16"):
        assert resolve_precision(name, GPU) == getattr(torch, name)
        assert resolve_precision(name, META) == torch.float32
    for name in ("float32", "bfloat16"):
        assert resolve_precision(name, CPU) == getattr(torch, name)
    assert resolve_precision("auto", META) == torch.float32
    with pytest.raises(ConfigError, match=r"^compute\.precision: float16 "):
        resolve_precision("float16", CPU)


def test_autocast_runs_products_in_the_low_precision() -> None:
    x = torch.ones(2, 2)
    with autocast(CPU, torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    for target in (CPU, META):
        with autocast(target, torch.float32):
            assert (x.to(target) @ x.to(target)).dtype == torch.float32


def test_only_float16_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    for target, dtype in product((CPU, META), (torch.float32, torch.bfloat16)):
        assert not grad_scaler(target, dtype).is_enabled()
    # Without a GPU PyTorch switches a scaler for "cuda" off; the type asked for is what counts.
    monkeypatch.setattr(torch.amp, "GradScaler", lambda kind, enabled: (kind, enabled))
    assert grad_scaler(GPU, torch.float16) == ("cuda", True)


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_the_same_to_every_reader(tf32: bool) -> None:
    configure_backends(ComputeConfig(tf32=not tf32), GPU)
    torch.set_float32_matmul_precision("high")  # as someone's script might
    configure_backends(ComputeConfig(tf32=tf32), GPU)
    cudnn: Any = torch.backends.cudnn
    precision = "tf32" if tf32 else "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"  # maps are averaged by products
    assert cudnn.conv.fp32_precision == precision
    assert cudnn.rnn.fp32_precision == precision
    # torch.compile and cudnn.flags read these; they raise where the two interfaces disagree.
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cuda.matmul.allow_tf32 is False
    assert cudnn.allow_tf32 is tf32
    with cudnn.flags(enabled=True):
        pass
    configure_backends(ComputeConfig(tf32=True), CPU)
    assert cudnn.allow_tf32 is False


@pytest.mark.usefixtures("backends")
def test_deterministic_overrides_the_benchmark_and_is_switched_off_again() -> None:
    configure_backends(ComputeConfig(deterministic=True, cudnn_benchmark=True), CPU)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    configure_backends(ComputeConfig(deterministic=False, cudnn_benchmark=True), CPU)
    assert torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic


def test_synchronize_waits_only_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for target in (CPU, META, GPU):
        synchronize(target)
    assert waited == [GPU]


@pytest.mark.gpu
@pytest.mark.usefixtures("automatic")
def test_a_real_gpu_is_found_and_used() -> None:
    found = resolve_device("auto")
    assert found == GPU
    assert describe_device(found).startswith("Using GPU: ")
    dtype = resolve_precision("auto", found)
    x = torch.ones(2, 2, device=found)
    with autocast(found, dtype):
        assert (x @ x).dtype == dtype
    assert grad_scaler(found, torch.float16).is_enabled()
    synchronize(found)
