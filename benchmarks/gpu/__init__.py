"""Checks and measurements of a machine with a GPU: `python -m benchmarks.gpu`."""
