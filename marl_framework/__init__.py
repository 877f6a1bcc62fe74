"""Multi-agent reinforcement learning for terrain mapping with UAVs.

The public names are those of `__init__.pyi`. Each is loaded when it is first asked for, so that
`import marl_framework` alone loads no heavy library.
"""

import os
from importlib.metadata import PackageNotFoundError, version

import lazy_loader

# PyTorch and the compiled loops have a pool of OpenMP threads each. Idle threads of one that spin
# for long keep the cores from the other: on two cores a step then takes a hundred times as long.
# Read once, when the first of them is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

try:
    __version__ = version("marl_framework")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
