"""Multi-agent reinforcement learning for terrain mapping with UAVs."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("marl_framework")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
