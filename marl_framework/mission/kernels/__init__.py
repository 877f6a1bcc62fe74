"""Compiled loops for CPUs and Triton kernels for GPUs; PyTorch does the same without them."""
