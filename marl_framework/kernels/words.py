"""Contract of random words: counter-based bits that depend only on a key and an index.

Results do not depend on the number of threads: Philox (Salmon et al. 2011, SC '11,
doi 10.1145/2063384.2063405).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from marl_framework.kernels.versions import Version, load, loops_compile


def random_words(words: Tensor, generator: torch.Generator, compiled: bool = True) -> None:
    """Fill `words`, [W] int64 on the CPU, with Philox4x64-10; the generator draws the key.

    If `compiled`, the compiled loop runs where available; numpy draws the same words.
    """
    drawn = torch.empty(2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    key, filled = drawn.numpy().view(np.uint64), words.numpy().view(np.uint64)
    if compiled and loops_compile():
        load("words", Version.LOOPS).random_words(filled, key)
    else:
        filled[:] = np.random.Philox(key=key).random_raw(len(filled))
