"""Contract of random words: bits that depend on a key and a place alone.

Any number of threads or programs draws the same: Philox (Salmon et al. 2011, SC '11,
doi 10.1145/2063384.2063405).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from marl_framework.kernels.versions import Kernel, Version, load, loops_compile

KERNELS = {
    "random_words": Kernel("kernels.words.random_words", loops="fill"),
    "window_bits": Kernel("kernels.words.window_bits", triton="window_bits"),
}

_WORD = 2**32 - 1
_MULTIPLIERS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def random_words(words: Tensor, generator: torch.Generator, compiled: bool = True) -> None:
    """Fill [W] int64 on the CPU with Philox4x64-10, under a key drawn from the generator.

    Args:
        words: written.
        generator: of the CPU.
        compiled: whether to use the compiled loop, if there is one; numpy draws the same words.
    """
    drawn = torch.empty(2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    key, filled = drawn.numpy().view(np.uint64), words.numpy().view(np.uint64)
    if compiled and loops_compile():
        load("words", Version.LOOPS).random_words(filled, key)
    else:
        filled[:] = np.random.Philox(key=key).random_raw(len(filled))


def window_bits(keys: Tensor, n: int, window: tuple[int, ...]) -> Tensor:
    """Return the bits of all windows of N UAVs, [E, N, K_x, K_y] int16, from keys [E] int64.

    A counter serves the next eight cells of a window row.
    """
    rows, cols = window
    counters_per_row = -(-cols // 8)
    counters = torch.arange(n * rows * counters_per_row, device=keys.device)
    words = philox(keys.unsqueeze(1), counters.expand(len(keys), -1))
    cells = torch.stack((words & 0xFFFF, words >> 16), -1)
    cells = cells.view(len(keys), n, rows, 8 * counters_per_row)
    return cells[..., :cols].to(torch.int16).contiguous()


def philox(keys: Tensor, counters: Tensor) -> Tensor:
    """Return the four 32-bit words of Philox4x32-10 for each counter, [..., 4] int64."""
    zeros = torch.zeros_like(counters)
    words, key = [counters, zeros, zeros, zeros], [keys & _WORD, keys >> 32 & _WORD]
    for _ in range(10):
        first, second = (words[k] * m for k, m in zip((0, 2), _MULTIPLIERS, strict=True))
        words = [
            (second >> 32 & _WORD) ^ words[1] ^ key[0],
            second & _WORD,
            (first >> 32 & _WORD) ^ words[3] ^ key[1],
            first & _WORD,
        ]
        key = [(k + step) & _WORD for k, step in zip(key, _STEPS, strict=True)]
    return torch.stack(words, -1)
