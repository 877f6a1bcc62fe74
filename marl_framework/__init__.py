"""Multi-agent reinforcement learning for terrain mapping with UAVs.

`__init__.pyi` lists the public names. Each name is loaded on first access, so that
`import marl_framework` alone loads no heavy library.
"""

import os
from importlib.metadata import PackageNotFoundError, version

import lazy_loader

# PyTorch and the compiled loops each have a pool of OpenMP threads. Idle threads that spin for long
# block the cores for the other pool: on two cores a step takes a hundred times as long.
# OpenMP reads this variable once, when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

try:
    __version__ = version("marl_framework")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
