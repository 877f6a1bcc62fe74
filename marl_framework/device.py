"""Device, precision and backend settings."""

from __future__ import annotations

import importlib.util
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

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.learning import ComputeConfig

_CPUINFO = Path("/proc/cpuinfo")
_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia/version")
_PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Instruction sets for bfloat16 on x86 and ARM; PyTorch and Linux use the same names.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def resolve_device(name: str) -> torch.device:
    """Return the device that `compute.device` names.

    With `auto`, a GPU that PyTorch cannot use gives a `ConfigWarning` that says why.

    Args:
        name: `auto` (the first GPU, else the CPU), `cpu`, `cuda` (the first GPU) or `cuda:N`.

    Raises:
        ConfigError: the device does not exist on this machine.
    """
    if name == "cpu":
        return torch.device("cpu")
    if name == "auto":
        return _automatic()
    count = _gpu_count()
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"compute.device: {name!r} is invalid; use auto, cpu, cuda or cuda:N")
    index = int(match[1] or 0)
    if index >= count:
        raise ConfigError(
            f"compute.device: {name} does not exist: {_gpus_present(count)}; "
            "use compute.device: auto or cpu"
        )
    return torch.device("cuda", index)


def as_device(device: torch.device | str) -> torch.device:
    """Return the device that is given to a class as `device`.

    Args:
        device: `cpu`, `cuda` (the current GPU), `cuda:N`, or a device of PyTorch.

    Raises:
        ConfigError: it is no device, or a GPU that does not exist on this machine.
    """
    try:
        found = torch.device(device) if isinstance(device, (str, torch.device)) else None
    except RuntimeError:  # no name of a device
        found = None
    if found is None:
        raise ConfigError(f"device: {device!r} is no device; give cpu, cuda or cuda:N")
    if found.type == "cuda" and (found.index or 0) >= (count := _gpu_count()):
        raise ConfigError(f"device: {found} does not exist: {_gpus_present(count)}; give cpu")
    return found


def unused_gpu() -> str:
    """Return why PyTorch cannot use this machine's NVIDIA GPU; empty where all is well.

    Asks NVIDIA's driver, not PyTorch: wheels for a newer CUDA than the driver's find no GPU.
    """
    if _gpu_count() or torch.version.hip is not None or not _gpu_granted():
        return ""
    if torch.version.cuda is None:
        return "the machine has an NVIDIA GPU, but this PyTorch is built for CPUs"
    driver, supported = _driver()
    name = f"NVIDIA's driver{f' {driver}' if driver else ''}"
    if supported and supported[0] < int(torch.version.cuda.split(".")[0]):
        return (
            f"{name} supports CUDA {supported[0]}.{supported[1]}, and this PyTorch needs CUDA "
            f"{torch.version.cuda}: update the driver, or install a PyTorch for CUDA {supported[0]}"
        )
    return (
        f"{name} and this PyTorch for CUDA {torch.version.cuda} do not work together: update the "
        "driver, or install a PyTorch for its CUDA (nvidia-smi shows it)"
    )


def describe_device(device: torch.device) -> str:
    """Return one line about the device: the GPU and its memory, or the CPU and its cores."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"Using GPU: {properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    if device.type == "cpu":
        cores = usable_cores()
        return f"Using CPU: {_cpu_name()}, {cores} core{'s' if cores != 1 else ''}"
    return f"Using device: {device}"


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the networks' forward passes on a device.

    `auto` is bfloat16 on GPUs from compute capability 8.0 on and on CPUs with bfloat16
    instructions, float16 on older GPUs, and float32 on other CPUs.

    Args:
        name: `float32`, `bfloat16`, `float16` or `auto`.
        device: CPU or GPU; other devices always use float32.

    Raises:
        ConfigError: float16 on a CPU, where it is slow and lacks operations.
    """
    if device.type not in ("cpu", "cuda"):
        return torch.float32  # such as meta, which autocast does not support
    if name == "auto":
        return _fastest_precision(device)
    if name == "float16" and device.type == "cpu":
        raise ConfigError(
            "compute.precision: float16 needs a GPU; use bfloat16, float32 or auto on the CPU"
        )
    return _PRECISIONS[name]


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return a context for automatic mixed precision; it does nothing for float32."""
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
    """
    _allow_tf32(compute.tf32 and device.type == "cuda")
    if compute.deterministic:
        # cuBLAS reads it once, when it creates its first handle.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(compute.deterministic)
    torch.backends.cudnn.deterministic = compute.deterministic
    torch.backends.cudnn.benchmark = compute.cudnn_benchmark and not compute.deterministic


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all its work; return at once on other devices."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def launched_on(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context for Triton kernels: they start on the current device, now the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _allow_tf32(allowed: bool) -> None:
    """Set TF32 for convolutions; matrix products stay exact, because they average maps.

    PyTorch has an older and a newer setting (`fp32_precision`) for each. `torch.compile` and
    `torch.backends.cudnn.flags` raise an error if they disagree, so set both, the older one
    first; early releases warn about it.
    """
    precision = "tf32" if allowed else "ieee"
    cudnn: Any = torch.backends.cudnn  # its operators are missing in PyTorch's type hints
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    cudnn.conv.fp32_precision = precision
    cudnn.rnn.fp32_precision = precision


def _automatic() -> torch.device:
    """Return the device of `auto`."""
    if _gpu_count():
        return torch.device("cuda", 0)
    if reason := unused_gpu():
        warnings.warn(f"compute.device: auto takes the CPU; {reason}", ConfigWarning, stacklevel=3)
    return torch.device("cpu")


def _gpu_count() -> int:
    """Return the number of GPUs that PyTorch can use."""
    with warnings.catch_warnings():  # `unused_gpu` says it in one line
        warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _gpu_granted() -> bool:
    """Whether the system shows this process an NVIDIA GPU that its environment does not hide."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles")
    # In a container the driver's version is there for all, the devices only for those granted.
    return not hidden and any(_DEVICES.glob("nvidia[0-9]*"))


def _driver() -> tuple[str, tuple[int, int] | None]:
    """Return version and newest CUDA of NVIDIA's driver, as far as it says."""
    version, supported = "", None
    with suppress(OSError):
        text = _DRIVER.read_text(encoding="utf-8", errors="replace")
        match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", text)
        version = match[1] if match else ""
    with suppress(Exception):  # whatever the driver says: the warning needs none of it
        import pynvml  # here, so that machines without NVIDIA's driver need it not

        pynvml.nvmlInit()
        number = pynvml.nvmlSystemGetCudaDriverVersion()
        supported = (number // 1000, number % 1000 // 10)
        version = version or str(pynvml.nvmlSystemGetDriverVersion())
    return version, supported


def _gpus_present(count: int) -> str:
    if count == 0:
        if reason := unused_gpu():
            return f"PyTorch finds no GPU ({reason})"
        built = torch.version.cuda is not None or torch.version.hip is not None
        reason = "" if built else " (this PyTorch is built for CPUs)"
        return f"PyTorch finds no GPU{reason}"
    if count == 1:
        return "this machine has one GPU, cuda:0"
    return f"this machine has {count} GPUs, cuda:0 to cuda:{count - 1}"


def _fastest_precision(device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        return torch.bfloat16 if capability >= (8, 0) else torch.float16
    return torch.bfloat16 if _BFLOAT16_FLAGS & _cpu_flags() else torch.float32


def _cpu_flags() -> set[str]:
    """Return the CPU's instruction sets as reported by PyTorch, else by Linux."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)
    if get_capabilities is not None:
        return {name for name, present in get_capabilities().items() if present}
    flags = _cpuinfo("flags") or _cpuinfo("Features")
    return set(flags.split())


def _cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "unknown"


def _cpuinfo(key: str) -> str:
    """Return the first value of a key in /proc/cpuinfo, or an empty string."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(rf"^{re.escape(key)}\s*:[ \t]*(.*)$", text, flags=re.MULTILINE)
    return match[1].strip() if match else ""


def usable_cores() -> int:
    """Return the number of cores this process may use; containers can restrict it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Lack(NamedTuple):
    """Why a GPU gets plain operators instead of Triton kernels."""

    reason: str
    fix: str
    """What to do about it; empty where nothing helps."""


def triton_lacks(device: torch.device) -> Lack | None:
    """Return what Triton lacks to compile for a device and to load what it compiled."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return Lack("there is no GPU", "")
    if torch.version.hip is not None:
        return Lack("this PyTorch is for AMD's GPUs", "")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        found = ".".join(map(str, capability))
        return Lack(f"this GPU has compute capability {found}, below 8.0", "")
    if importlib.util.find_spec("triton") is None:
        return Lack("triton is not installed", "pip install triton")
    if not any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "gcc", "clang")):
        return Lack("there is no C compiler", "install gcc, or name a compiler in CC")
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return Lack("Python.h is missing", "install Python's headers (Debian, Ubuntu: python3-dev)")
    return None


def uses_triton(compute: ComputeConfig, device: torch.device) -> bool:
    """Return whether a device runs Triton kernels."""
    return compute.compile and triton_lacks(device) is None
