"""Imports TorchRL's collectors, which warn about their own classes, before any test does.

Warnings are errors in tests, and the first test of a process varies.
"""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Creating .*WeightUpdater which", DeprecationWarning)
    import torchrl.collectors  # noqa: F401
