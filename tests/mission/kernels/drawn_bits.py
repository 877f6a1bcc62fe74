"""The bits that Triton draws from keys, by its definition: Philox4x32-10 in plain Python."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 2**32 - 1
_MULTIPLIERS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(key: int, counter: int) -> list[int]:
    """Return the four words of a counter (Salmon et al. 2011, section 3)."""
    words, keys = [counter, 0, 0, 0], [key & _WORD, key >> 32 & _WORD]
    for _ in range(10):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (second >> 32) ^ words[1] ^ keys[0],
            second & _WORD,
            (first >> 32) ^ words[3] ^ keys[1],
            first & _WORD,
        ]
        keys = [(k + step) & _WORD for k, step in zip(keys, _STEPS, strict=True)]
    return words


def drawn_bits(keys: Tensor, n: int, window: tuple[int, int]) -> Tensor:
    """Return the bits of all windows, [E, N, K_x, K_y] int16."""
    rows, cols = n * window[0], window[1]
    wide = -(-cols // 8)
    cells = [
        part
        for key in keys.tolist()
        for counter in range(rows * wide)
        for word in philox(key, counter)
        for part in (word & 0xFFFF, word >> 16)
    ]
    bits = torch.tensor(cells, dtype=torch.int32).view(len(keys), n, window[0], 8 * wide)
    return bits[..., :cols].short().contiguous()
