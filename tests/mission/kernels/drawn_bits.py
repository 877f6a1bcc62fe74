"""The bits that Triton draws from keys, by the definition: Philox4x32-10 in plain operators."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 2**32 - 1
_MULTIPLIERS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(keys: Tensor, counters: Tensor) -> Tensor:
    """Return the four words of each counter (Salmon et al. 2011, section 3), [..., 4] int64."""
    nothing = torch.zeros_like(counters)
    words, key = [counters, nothing, nothing, nothing], [keys & _WORD, keys >> 32 & _WORD]
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


def drawn_bits(keys: Tensor, n: int, window: tuple[int, ...]) -> Tensor:
    """Return the bits of all windows of N UAVs, [E, N, K_x, K_y] int16, from keys [E]."""
    rows, cols = window
    wide = -(-cols // 8)  # eight cells a counter, along a row
    counters = torch.arange(n * rows * wide, device=keys.device)
    words = philox(keys.unsqueeze(1), counters.expand(len(keys), -1))
    cells = torch.stack((words & 0xFFFF, words >> 16), -1).view(len(keys), n, rows, 8 * wide)
    return cells[..., :cols].to(torch.int16).contiguous()
