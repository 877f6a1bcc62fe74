"""Seeds of splits and processes never meet."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.mission.seeding import MAX_RANK, MAX_SEED, SPLITS, split_seed

STREAMS = st.tuples(
    st.integers(0, MAX_SEED - 1), st.sampled_from(SPLITS), st.integers(0, MAX_RANK - 1)
)


@given(STREAMS, STREAMS)
def test_different_streams_have_different_seeds_of_32_bits(a, b) -> None:
    seeds = split_seed(*a), split_seed(*b)
    assert (seeds[0] == seeds[1]) == (a == b)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_neighbouring_streams_never_collide() -> None:
    seeds = [
        split_seed(seed, split, rank)
        for base in (0, MAX_SEED - 12)
        for seed in range(base, base + 12)
        for split in SPLITS
        for rank in range(MAX_RANK)
    ]
    assert len(set(seeds)) == len(seeds) == 2 * 12 * 3 * MAX_RANK


def test_streams_of_one_seed_draw_differently() -> None:
    draws = {
        tuple(torch.rand(4, generator=torch.Generator().manual_seed(split_seed(3, split, rank))))
        for split in SPLITS
        for rank in (0, 1, 512)
    }
    assert len(draws) == 9


@pytest.mark.parametrize(
    ("seed", "split", "rank"),
    [(-1, "test", 0), (MAX_SEED, "test", 0), (0, "test", -1), (0, "test", MAX_RANK), (0, "x", 0)],
)
def test_what_is_out_of_range_is_refused(seed: int, split: str, rank: int) -> None:
    with pytest.raises(ValueError, match=r"split|seed|rank"):
        split_seed(seed, split, rank)
