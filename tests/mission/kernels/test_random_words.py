"""Random words in compiled loops: numpy's Philox, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.mission.kernels import cpu
from tests.mission.kernels.drawn_bits import drawn_bits, philox

WORDS = st.integers(0, 5000)
SEEDS = st.integers(0, 2**40)


def filled(words: int, seed: int) -> torch.Tensor:
    found = torch.full((words,), 7)
    cpu.random_words(found, torch.Generator().manual_seed(seed))
    return found


@given(words=WORDS, seed=SEEDS)
def test_words_are_those_of_numpys_philox(words: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    key = torch.empty(2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    philox = np.random.Philox(key=key.numpy().view(np.uint64))
    expected = philox.random_raw(words).view(np.int64)
    assert filled(words, seed).equal(torch.from_numpy(expected))


def test_threads_and_the_twin_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    found = filled(100_003, 1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert filled(100_003, 1).equal(found)
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(cpu, "_AVAILABLE", False)
    assert filled(100_003, 1).equal(found)


def test_each_call_draws_other_words() -> None:
    generator, first, second = torch.Generator().manual_seed(1), *torch.zeros(2, 1000).long()
    cpu.random_words(first, generator)
    cpu.random_words(second, generator)
    assert (first == second).sum() == 0


def test_the_bits_that_kernels_draw_are_philox() -> None:
    nothing = torch.zeros(1, dtype=torch.int64)
    words = philox(nothing, nothing)[0].tolist()
    # The first of the known answers that come with Random123.
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    bits = drawn_bits(nothing, 1, (1, 9))[0, 0, 0].tolist()
    assert [bit & 0xFFFF for bit in bits[:4]] == [0xE8D5, 0x6627, 0xC58D, 0xE169]
    assert len(bits) == 9
