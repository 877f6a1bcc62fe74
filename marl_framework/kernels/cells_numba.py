"""Single cells in compiled loops; see `cells`.

`log2` and `entropy` become part of each loop's own code. As functions of their own they were
compiled otherwise in a process that had compiled another loop before, and rounded otherwise.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from marl_framework.kernels.cells import INTEREST_ABOVE, NO_INTEREST_BELOW, PROBABILITY_FLOOR
from marl_framework.kernels.loops import FAST

_LOW, _HIGH = np.float32(PROBABILITY_FLOOR), np.float32(1 - PROBABILITY_FLOOR)
_INTEREST, _NO_INTEREST = np.float32(INTEREST_ABOVE), np.float32(NO_INTEREST_BELOW)
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_SQRT_HALF_BITS = np.float32(0.5**0.5).view(np.int32)


def _log2_polynomial(degree: int) -> list[np.float32]:
    """Fit log2(1 + t)/t on [1/√2 - 1, √2 - 1] at Chebyshev points, lowest power first."""
    low, high = 0.5**0.5 - 1, 2**0.5 - 1
    nodes = np.cos((np.arange(1000) + 0.5) * np.pi / 1000)
    t = (low + high) / 2 + (high - low) / 2 * nodes
    return [np.float32(c) for c in np.polynomial.polynomial.polyfit(t, np.log2(1 + t) / t, degree)]


_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = _log2_polynomial(8)


@njit(inline="always", **FAST)
def log2(x):
    """log2 of a positive normal number, to 1e-7: exponent plus a polynomial of the mantissa.

    The mantissa is taken from [1/√2, √2), so that numbers near 1 keep their precision.
    """
    bits = np.float32(x).view(np.int32)
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
    t = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - _ONE
    series = ((_P8 * t + _P7) * t + _P6) * t + _P5
    series = ((series * t + _P4) * t + _P3) * t + _P2
    series = (series * t + _P1) * t + _P0
    return np.float32(exponent) + t * series


@njit(inline="always", **FAST)
def entropy(p):
    """See `cells.entropy`."""
    p = min(max(p, _LOW), _HIGH)
    return -(p * log2(p) + (_ONE - p) * log2(_ONE - p))


@njit(**FAST)
def bayes(p, odds):
    """See `cells.bayes_update`; `odds` are those of the reading over those of the prior."""
    clamped = min(max(p, _LOW), _HIGH)
    weighed = clamped * odds
    return weighed / (weighed + (_ONE - clamped))


@njit(**FAST)
def uncertainty(p):
    """See `cells.uncertainty`."""
    return min(max(p, _LOW), _HIGH) * entropy(p)


@njit(**FAST)
def weight(p):
    """See `cells.interest_weight`."""
    return (_HALF if p > _INTEREST else _ZERO) + (_HALF if p >= _NO_INTEREST else _ZERO)
