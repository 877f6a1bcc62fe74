"""Imports TorchRL's collectors, which warn about their own classes, before any test does."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Creating .*WeightUpdater which", DeprecationWarning)
    import torchrl.collectors  # noqa: F401
