"""Description of the machine of a GPU run, and its missing packages."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

_SAME_NAME = (
    "torch kornia kornia_rs numpy numba lazy_loader pydantic pydantic_core typing_inspection "
    "annotated_types tensorboard rich matplotlib pytest hypothesis scipy"
)
PACKAGES = {name: name for name in _SAME_NAME.split()} | {
    "pyyaml": "yaml",
    "opencv-python-headless": "cv2",
    "nvidia-ml-py": "pynvml",
    "scikit-learn": "sklearn",
}
"""Distributions that the stages need, with a module of each; another distribution, such as
opencv-python, may also have the module."""


def missing_packages() -> list[str]:
    """Return the distributions whose module is missing."""
    return [name for name, module in PACKAGES.items() if find_spec(module) is None]


def machine_facts(device: str) -> dict[str, str]:
    """Return versions, driver and clocks by name, as far as they are known."""
    facts = {"machine": platform.platform(), "Python": platform.python_version()}
    for package in ("torch", "triton"):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    if device == "cpu":
        return facts | {"device": "CPU"}
    with suppress(Exception):  # facts are optional, and drivers fail in many ways
        import pynvml
        import torch

        from marl_framework.training.hardware import nvml_handle

        pynvml.nvmlInit()
        number = pynvml.nvmlSystemGetCudaDriverVersion()
        cuda = f"{number // 1000}.{number % 1000 // 10}"
        facts["driver"] = f"{pynvml.nvmlSystemGetDriverVersion()} (CUDA {cuda})"
        handle = nvml_handle(pynvml, torch.device(device))
        facts["device"] = str(pynvml.nvmlDeviceGetName(handle))
        facts["memory"] = f"{pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30:.0f} GiB"
        for name, kind in (
            ("SM clock", pynvml.NVML_CLOCK_SM),
            ("memory clock", pynvml.NVML_CLOCK_MEM),
        ):
            now = pynvml.nvmlDeviceGetClockInfo(handle, kind)
            most = pynvml.nvmlDeviceGetMaxClockInfo(handle, kind)
            facts[name] = f"{now} of {most} MHz"
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        facts["power limit"] = f"{limit / 1000:.0f} W"
    return facts
