"""Device, precision and backend settings."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import platform
import re
import shutil
import sysconfig
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from marl_framework.command_line import usable_cores
from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.learning import ComputeConfig

CPUINFO = Path("/proc/cpuinfo")
DEVICES = Path("/dev")
# Instruction sets for bfloat16 on x86 and ARM; PyTorch and Linux use the same names.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Options of glibc's mallopt, and their values.
_KEEP_FREED = {-1: 2**30, -4: 0}  # M_TRIM_THRESHOLD, M_MMAP_MAX


def resolve_device(name: str) -> torch.device:
    """Return the device for `compute.device`: `auto`, `cpu`, `cuda` (the first GPU) or `cuda:N`.

    Raises:
        ConfigError: the device does not exist on this machine.
    """
    if name == "auto":
        return automatic_device()
    device = as_device(name, "compute.device")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"compute.device: {name!r} must be auto, cpu, cuda or cuda:N")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def automatic_device() -> torch.device:
    """Return the first GPU, else the CPU; warn if PyTorch cannot use this machine's GPU."""
    if _gpu_count():
        return torch.device("cuda", 0)
    if reason := unused_gpu():
        warnings.warn(f"compute.device: auto uses the CPU; {reason}", ConfigWarning, stacklevel=3)
    return torch.device("cpu")


def as_device(device: torch.device | str, key: str = "device") -> torch.device:
    """Return the device for an argument or key: `cpu`, `cuda` (the current GPU) or `cuda:N`.

    Raises ConfigError if the value is not a device, or names a GPU that this machine lacks.
    """
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{key}: {device!r} is not a device; use cpu, cuda or cuda:N") from error
    if resolved.type == "cuda" and (resolved.index or 0) >= (count := _gpu_count()):
        built = torch.version.cuda is not None or torch.version.hip is not None
        reason = unused_gpu() or ("there is no GPU" if built else "this PyTorch is built for CPUs")
        if count:
            reason = f"the last GPU is cuda:{count - 1}"
        raise ConfigError(f"{key}: {device} does not exist: {reason}; use cpu")
    return resolved


def unused_gpu() -> str:
    """Return why PyTorch cannot use this machine's GPU; empty if it can, or there is no GPU."""
    if torch.backends.mps.is_available():
        return "Apple's GPUs are not supported"
    if _gpu_count() or torch.version.hip is not None or not _has_visible_gpu():
        return ""
    if torch.version.cuda is None:
        return "the machine has an NVIDIA GPU, but this PyTorch is built for CPUs"
    driver, supported = _driver_versions()
    if supported < int(torch.version.cuda.split(".")[0]):
        return (
            f"NVIDIA's driver {driver} supports CUDA {supported}, but this PyTorch requires CUDA "
            f"{torch.version.cuda}: update the driver, or install a PyTorch for CUDA {supported}"
        )
    return (
        f"NVIDIA's driver does not work with this PyTorch for CUDA {torch.version.cuda}: update "
        "the driver, or install a PyTorch for the CUDA version that nvidia-smi shows"
    )


def describe_device(device: torch.device) -> str:
    """Describe the device in one line: the GPU and its memory, or the CPU and its cores."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"Using GPU: {properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    if device.type == "cpu":
        cores = usable_cores()
        name = _cpuinfo("model name") or platform.processor() or platform.machine() or "unknown"
        return f"Using CPU: {name}, {cores} core{'s' if cores != 1 else ''}"
    return f"Using device: {device}"


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the networks' forward passes on a device.

    `auto` is bfloat16 on GPUs with compute capability 8.0 or above and on CPUs with bfloat16
    instructions, float16 on older GPUs, and float32 on other CPUs.

    Devices other than CPU and GPU always use float32. Raises ConfigError for float16 on a CPU.
    """
    if device.type not in ("cpu", "cuda"):
        return torch.float32  # such as meta, which autocast does not support
    if name == "auto" and device.type == "cuda":
        new = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if new else torch.float16
    if name == "auto":
        return torch.bfloat16 if _BFLOAT16_FLAGS & _cpu_flags() else torch.float32
    if name == "float16" and device.type == "cpu":
        raise ConfigError(
            "compute.precision: float16 requires a GPU; use bfloat16, float32 or auto on the CPU"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def has_slow_products() -> bool:
    """Return whether this CPU multiplies float32 matrices at half its rate, as MKL does on AMD."""
    return torch.backends.mkl.is_available() and _cpuinfo("vendor_id") == "AuthenticAMD"


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return a context for automatic mixed precision, without effect for float32."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.amp.autocast(device.type, dtype=dtype)


def grad_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Return a gradient scaler, which is disabled unless the dtype is float16."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)


def configure_backends(compute: ComputeConfig, device: torch.device) -> None:
    """Set TF32, cuDNN benchmarking and determinism for the whole process.

    `tf32` affects float32 convolutions on GPUs only; matrix products stay exact. `deterministic`
    overrides `cudnn_benchmark`; operations without a deterministic kernel then raise an error.
    On a CPU freed memory is kept for the next tensors, because new pages take long (glibc only).
    """
    on_cpu = device.type == "cpu" and os.name == "posix"
    if on_cpu and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for option, value in _KEEP_FREED.items():
            libc.mallopt(option, value)
    tf32 = compute.tf32 and device.type == "cuda"
    cudnn: Any = torch.backends.cudnn  # some attributes are missing in PyTorch's type hints
    # PyTorch has an older and a newer setting, which must agree; set the older one first.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if tf32 else "ieee"
    if compute.deterministic:
        # cuBLAS reads this variable once, when creating the first handle.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(compute.deterministic)
    torch.backends.cudnn.deterministic = compute.deterministic
    torch.backends.cudnn.benchmark = compute.cudnn_benchmark and not compute.deterministic


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all work; return at once on other devices."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def launched_on(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context that makes the tensor's GPU the current one, for Triton kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _gpu_count() -> int:
    """Return the number of GPUs that PyTorch can use."""
    with warnings.catch_warnings():  # `unused_gpu` reports the problem in one line
        warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_visible_gpu() -> bool:
    """Return whether there is an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles")
    return not hidden and any(DEVICES.glob("nvidia[0-9]*"))


def _driver_versions() -> tuple[str, float]:
    """Return NVIDIA's driver version and newest supported major CUDA version; inf if unknown."""
    with suppress(Exception):  # both versions are optional
        import pynvml

        pynvml.nvmlInit()
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()
        return str(driver), cuda // 1000
    return "", math.inf


def _cpu_flags() -> set[str]:
    """Return the CPU's instruction sets as reported by PyTorch, else by Linux."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)
    if get_capabilities is not None:
        return {name for name, present in get_capabilities().items() if present}
    return set((_cpuinfo("flags") or _cpuinfo("Features")).split())


def _cpuinfo(key: str) -> str:
    """Return the first value of a key in /proc/cpuinfo, or an empty string."""
    text = ""
    with suppress(OSError):
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    match = re.search(rf"^{re.escape(key)}\s*:[ \t]*(.*)$", text, flags=re.MULTILINE)
    return match[1].strip() if match else ""


class Lack(NamedTuple):
    """Missing requirement of Triton kernels, and the remedy (may be empty)."""

    reason: str
    fix: str


def triton_lacks(device: torch.device) -> Lack | None:
    """Return the first requirement of Triton kernels that is missing for a device, or None."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return Lack("there is no GPU", "")
    if torch.version.hip is not None:
        return Lack("this PyTorch is for AMD's GPUs", "")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        number = ".".join(map(str, capability))
        return Lack(f"this GPU has compute capability {number}, below 8.0", "")
    if importlib.util.find_spec("triton") is None:
        return Lack("triton is not installed", "pip install triton")
    if not any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "gcc", "clang")):
        return Lack("there is no C compiler", "install gcc, or set CC to a compiler")
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return Lack("Python.h is missing", "install Python's headers (Debian, Ubuntu: python3-dev)")
    return None


def uses_triton(compute: ComputeConfig, device: torch.device) -> bool:
    """Return whether a device runs Triton kernels."""
    return compute.compile and triton_lacks(device) is None
