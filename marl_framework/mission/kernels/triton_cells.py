"""What kernels compute of single cells, in Triton; the twins are in `mission.belief`."""

from __future__ import annotations

import triton
import triton.language as tl

_LOW = tl.constexpr(1e-4)  # mission.belief.PROBABILITY_FLOOR
_HIGH = tl.constexpr(1 - 1e-4)


@triton.jit
def _log2(x, FAST: tl.constexpr):
    """Binary logarithm; FAST is the GPU's own, to 2^-22."""
    if FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)


@triton.jit
def _ratio(a, b, FAST: tl.constexpr):
    """Quotient; FAST multiplies with the GPU's own reciprocal, to 2^-23."""
    if FAST:
        return a * tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [b], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return a / b


@triton.jit
def clamp(p):
    """Probabilities within the limits of beliefs."""
    return tl.minimum(tl.maximum(p, _LOW), _HIGH)


@triton.jit
def bayes(p, odds, FAST: tl.constexpr):
    """Beliefs after a reading that multiplies their odds."""
    q = clamp(p)
    weighed = q * odds
    return _ratio(weighed, weighed + (1.0 - q), FAST)


@triton.jit
def entropy(q, FAST: tl.constexpr):
    """Entropy of clamped probabilities [bit]."""
    return -(q * _log2(q, FAST) + (1.0 - q) * _log2(1.0 - q, FAST))


@triton.jit
def weight(p):
    """Weight w(p) of a cell in the reward, see `mission.belief.interest_weight`."""
    return tl.where(p > 0.501, 0.5, 0.0) + tl.where(p >= 0.499, 0.5, 0.0)
