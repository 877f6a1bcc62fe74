"""Imports TorchRL's collectors, which warn of classes of their own, before a test does.

Warnings are errors in tests; which test comes first in a process is chance.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Creating .*WeightUpdater which", DeprecationWarning)
    import torchrl.collectors  # noqa: F401
