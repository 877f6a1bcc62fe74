"""Compiled loops of a step; where numba is missing, PyTorch and numpy do the same."""
