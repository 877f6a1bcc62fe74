"""Philox4x64-10 in a compiled loop; see `words`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from marl_framework.kernels.loops import loop, use_all_threads

_ROUNDS = 10
_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ZERO, _HALF, _LOW = np.uint64(0), np.uint64(32), np.uint64(2**32 - 1)


@njit
def _high(a, b):
    """Return the upper 64 bits of a product, computed from 32-bit halves."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    first = a1 * b0 + (a0 * b0 >> _HALF)
    second = a0 * b1 + (first & _LOW)
    return a1 * b1 + (first >> _HALF) + (second >> _HALF)


@njit
def _block(counter, k0, k1):
    """Return the four words of a counter."""
    x0, x1, x2, x3 = counter, _ZERO, _ZERO, _ZERO
    for _ in range(_ROUNDS):
        x0, x1, x2, x3 = (
            _high(_M1, x2) ^ x1 ^ k0,
            _M1 * x2,
            _high(_M0, x0) ^ x3 ^ k1,
            _M0 * x0,
        )
        k0 += _W0
        k1 += _W1
    return x0, x1, x2, x3


def random_words(words: Any, key: Any) -> None:
    """Fill `words`, [W] uint64, with the words for a key, [2] uint64."""
    use_all_threads()
    fill(words, key)


@loop(parallel=True)
def fill(words, key):
    """Write the words; see `random_words`. The counter starts at 1."""
    blocks = words.size // 4
    for b in prange(blocks):
        x0, x1, x2, x3 = _block(np.uint64(b + 1), key[0], key[1])
        words[4 * b] = x0
        words[4 * b + 1] = x1
        words[4 * b + 2] = x2
        words[4 * b + 3] = x3
    if 4 * blocks < words.size:
        last = _block(np.uint64(blocks + 1), key[0], key[1])
        for place in range(4 * blocks, words.size):
            words[place] = last[place - 4 * blocks]
