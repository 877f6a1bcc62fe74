"""Functions of single numbers for loops that numba compiles for the CPU.

They become part of each loop's own code. As functions of their own they were compiled otherwise in
a process that had compiled another loop before, and rounded otherwise.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

LOW = np.float32(1e-4)
HIGH = np.float32(1.0 - 1e-4)
"""Beliefs are kept between them; see `belief.clamp_probability`."""
_ONE = np.float32(1.0)
_SQRT_HALF_BITS = np.float32(0.5**0.5).view(np.int32)


def _log2_polynomial(degree: int) -> list[np.float32]:
    """Fit log2(1 + t)/t on [1/√2 - 1, √2 - 1] at Chebyshev points, lowest power first."""
    low, high = 0.5**0.5 - 1, 2**0.5 - 1
    nodes = np.cos((np.arange(1000) + 0.5) * np.pi / 1000)
    t = (low + high) / 2 + (high - low) / 2 * nodes
    return [np.float32(c) for c in np.polynomial.polynomial.polyfit(t, np.log2(1 + t) / t, degree)]


_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = _log2_polynomial(8)

# Vector registers need these: sums may be reordered (NaN and infinity keep their meaning), and a
# division by zero gives infinity instead of an exception.
FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "arcp", "nsz"}, "error_model": "numpy"}


@njit(inline="always", **FAST)
def log2(x: Any) -> Any:
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
def entropy(p: Any) -> Any:
    """Return the binary entropy of a clamped probability [bit]."""
    p = min(max(p, LOW), HIGH)
    return -(p * log2(p) + (_ONE - p) * log2(_ONE - p))


def forget_outdated(*loops: Any) -> None:
    """Remove cached loops that were compiled with other functions than those of this file.

    numba compiles a loop again where the loop's own file changed, and looks at no other. So beside
    each cached loop lies the SHA-256 of this file.

    Args:
        loops: functions with `cache=True` that use functions of this file.
    """
    ours = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    for loop in loops:
        if not hasattr(loop, "stats"):  # NUMBA_DISABLE_JIT leaves functions as they are
            continue
        name = f"{Path(loop.py_func.__code__.co_filename).stem}.{loop.__name__}"
        folder = Path(loop.stats.cache_path)
        stamp = folder / f"{name}.sha256"
        with suppress(OSError):  # what cannot be written holds no loops
            if not stamp.exists() or stamp.read_text(encoding="ascii") != ours:
                for index in folder.glob(f"{name}-*.nbi"):
                    index.unlink(missing_ok=True)
                stamp.write_text(ours, encoding="ascii")
