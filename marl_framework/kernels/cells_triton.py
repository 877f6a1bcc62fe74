"""Single cells in Triton; see `cells`."""

from __future__ import annotations

import triton
import triton.language as tl

from marl_framework.kernels.cells import INTEREST_ABOVE, NO_INTEREST_BELOW, PROBABILITY_FLOOR

# The GPU's own logarithm and reciprocal, good to 2^-22; Triton's interpreter has none.
_FAST = tl.constexpr(not triton.knobs.runtime.interpret)
_LOW = tl.constexpr(PROBABILITY_FLOOR)
_HIGH = tl.constexpr(1 - PROBABILITY_FLOOR)
_INTEREST = tl.constexpr(INTEREST_ABOVE)
_NO_INTEREST = tl.constexpr(NO_INTEREST_BELOW)


@triton.jit
def _log2(x):
    if _FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)


@triton.jit
def _ratio(a, b):
    if _FAST:
        return a * tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [b], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return a / b


@triton.jit
def clamp(p):
    """See `cells.clamp_probability`."""
    return tl.minimum(tl.maximum(p, _LOW), _HIGH)


@triton.jit
def bayes(p, odds):
    """See `cells.bayes_update`; `odds` are those of the reading over those of the prior."""
    q = clamp(p)
    weighed = q * odds
    return _ratio(weighed, weighed + (1.0 - q))


@triton.jit
def entropy(q):
    """See `cells.entropy`; q is clamped."""
    return -(q * _log2(q) + (1.0 - q) * _log2(1.0 - q))


@triton.jit
def weight(p):
    """See `cells.interest_weight`."""
    return tl.where(p > _INTEREST, 0.5, 0.0) + tl.where(p >= _NO_INTEREST, 0.5, 0.0)
