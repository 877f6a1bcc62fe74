"""Public path of the COMA wrapper, which is defined in `algorithms.coma`."""

from marl_framework.algorithms.coma import COMAWrapper

__all__ = ["COMAWrapper"]
