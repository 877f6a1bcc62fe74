"""Fresh random streams do not overlap with others."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.mission.seeding import DEPLOYMENT, MAX_RANK, MAX_SEED, SPLITS, split_seed
from marl_framework.training.streams import renew_stream

SEEDS = st.integers(0, MAX_SEED - 1)
RANKS = st.integers(0, MAX_RANK - 1)
EPISODES = st.integers(0, 2**40)
OTHERS = (*SPLITS[1:], DEPLOYMENT)


def renewed(seed: int, episodes: int, rank: int) -> int:
    generator = torch.Generator()
    renew_stream(generator, seed, episodes, rank)
    return generator.initial_seed() % 2**32  # all that torch's CPU generator keeps


@given(SEEDS, EPISODES, RANKS, SEEDS, st.sampled_from(OTHERS), RANKS)
def test_a_renewed_stream_is_never_that_of_another_split(
    seed: int, episodes: int, rank: int, other_seed: int, split: str, other_rank: int
) -> None:
    """The lowest two bits tell the splits apart, whatever the others are."""
    ours = renewed(seed, episodes, rank)
    assert ours % 4 == split_seed(other_seed, "training", other_rank) % 4
    assert ours % 4 != split_seed(other_seed, split, other_rank) % 4


def test_splits_ranks_and_episodes_never_meet() -> None:
    fresh = {
        split_seed(seed, split, rank)
        for seed in range(8)
        for split in (*SPLITS, DEPLOYMENT)
        for rank in range(64)
    }
    # The published schedule flies 5 missions a step, the largest batches 4,096 at once.
    flown = [*range(0, 1500, 5), *(4096 * k for k in range(1, 200))]
    for seed in (0, 7):
        seeds = {renewed(seed, n, rank) for n in flown for rank in range(8)}
        assert len(seeds) == 8 * len(flown)
        assert not fresh & seeds


@given(SEEDS, EPISODES, st.integers(1, MAX_SEED - 2), RANKS, RANKS)
def test_a_training_never_meets_itself(
    seed: int, episodes: int, more: int, rank: int, other_rank: int
) -> None:
    ours = renewed(seed, episodes, rank)
    assert ours != split_seed(seed, "training", other_rank)
    assert ours != renewed(seed, episodes + more, other_rank)
    assert ours == renewed(seed, episodes + MAX_SEED - 1, rank)  # what remains
