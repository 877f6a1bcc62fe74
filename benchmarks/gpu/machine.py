"""What the machine of a GPU run is, and which packages it lacks."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

PACKAGES = {
    "torch": "torch",
    "kornia": "kornia",
    "kornia_rs": "kornia_rs",
    "numpy": "numpy",
    "numba": "numba",
    "pyyaml": "yaml",
    "lazy_loader": "lazy_loader",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic_core",
    "typing_inspection": "typing_inspection",
    "annotated_types": "annotated_types",
    "tensorboard": "tensorboard",
    "rich": "rich",
    "matplotlib": "matplotlib",
    "opencv-python-headless": "cv2",
    "nvidia-ml-py": "pynvml",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
    "scipy": "scipy",
    "scikit-learn": "sklearn",
}
"""Distributions that the stages need, with the module that each brings; another distribution, such
as opencv-python, may bring it too."""


def missing_packages() -> list[str]:
    """Return the distributions whose module is not there."""
    return [name for name, module in PACKAGES.items() if find_spec(module) is None]


def machine_facts(device: str) -> dict[str, str]:
    """Return versions, driver and clocks, as far as this machine tells them, by name."""
    facts = {"machine": platform.platform(), "Python": platform.python_version()}
    for package in ("torch", "triton"):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    if device == "cpu":
        return facts | {"device": "CPU"}
    with suppress(Exception):  # whatever the driver says: the facts are an extra
        import pynvml

        pynvml.nvmlInit()
        number = pynvml.nvmlSystemGetCudaDriverVersion()
        cuda = f"{number // 1000}.{number % 1000 // 10}"
        facts["driver"] = f"{pynvml.nvmlSystemGetDriverVersion()} (CUDA {cuda})"
        index = int(device.partition(":")[2] or 0)
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
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
