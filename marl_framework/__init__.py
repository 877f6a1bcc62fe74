"""Multi-agent reinforcement learning for terrain mapping with UAVs."""

import os
from importlib.metadata import PackageNotFoundError, version

# PyTorch and the compiled loops have a pool of OpenMP threads each. Idle threads of one that spin
# for long keep the cores from the other: on two cores a step then takes a hundred times as long.
# Read once, when the first of them is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

try:
    __version__ = version("marl_framework")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
