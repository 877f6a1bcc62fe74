"""Kernels: computations with more than one implementation.

Each `NAME.py` is the contract of a few kernels: it defines arguments, shapes and types, and
often contains the plain PyTorch version. `NAME_numba.py` has the compiled loops, and
`NAME_triton.py` the Triton kernels. Callers use only the functions of the contract.
"""
