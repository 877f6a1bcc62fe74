"""The COMA wrapper under its public path; it lives in `algorithms.coma`."""

from marl_framework.algorithms.coma import COMAWrapper

__all__ = ["COMAWrapper"]
