"""Kernels: computations that exist in more than one version.

Each `NAME.py` is the contract of a few kernels: their arguments, shapes and types, and the plain
PyTorch version or its name. Next to it lie the compiled loops (`NAME_numba.py`) and the Triton
kernels (`NAME_triton.py`). Callers call the functions of the contract alone.
"""
