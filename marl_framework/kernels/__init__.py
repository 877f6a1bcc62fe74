"""Compiled kernels for the inner loops of a step; each has a plain PyTorch twin in `mission`."""
