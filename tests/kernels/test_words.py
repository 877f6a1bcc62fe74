"""Random words: numpy's Philox in compiled loops, and the definition of the bits of Triton."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from marl_framework.kernels.windows import philox, window_bits
from marl_framework.kernels.words import random_words


def filled(words: int, seed: int, compiled: bool = True) -> torch.Tensor:
    found = torch.full((words,), 7)
    random_words(found, torch.Generator().manual_seed(seed), compiled)
    return found


@given(words=st.integers(0, 5000), seed=st.integers(0, 2**40))
@example(words=100_003, seed=1)
def test_loops_draw_the_words_of_numpy_on_any_number_of_threads(words: int, seed: int) -> None:
    expected = filled(words, seed, compiled=False)
    for number in (1, 2):
        torch.set_num_threads(number)
        assert filled(words, seed).equal(expected)


def test_each_call_draws_other_words() -> None:
    generator, first, second = torch.Generator().manual_seed(1), *torch.zeros(2, 1000).long()
    random_words(first, generator)
    random_words(second, generator)
    assert (first == second).sum() == 0


def test_window_bits_are_philox() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    # The first of the known answers that come with Random123.
    assert philox(zero, zero)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    bits = window_bits(zero, 1, (1, 9))[0, 0, 0].tolist()
    assert [bit & 0xFFFF for bit in bits[:4]] == [0xE8D5, 0x6627, 0xC58D, 0xE169]
    assert len(bits) == 9
