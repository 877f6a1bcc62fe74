"""Seeds of splits and processes never meet."""

from __future__ import annotations

import pytest

from marl_framework.mission.seeding import MAX_RANK, MAX_SEED, SPLITS, split_seed


def test_neighbouring_streams_never_collide() -> None:
    seeds = [
        split_seed(seed, split, rank)
        for base in (0, MAX_SEED - 12)
        for seed in range(base, base + 12)
        for split in SPLITS
        for rank in range(MAX_RANK)
    ]
    assert len(set(seeds)) == len(seeds) == 2 * 12 * 3 * MAX_RANK
    assert 0 <= min(seeds) <= max(seeds) < 2**32


@pytest.mark.parametrize(
    ("seed", "split", "rank"),
    [(-1, "test", 0), (MAX_SEED, "test", 0), (0, "test", -1), (0, "test", MAX_RANK), (0, "x", 0)],
)
def test_values_out_of_range_are_refused(seed: int, split: str, rank: int) -> None:
    with pytest.raises(ValueError, match=r"split|seed|rank"):
        split_seed(seed, split, rank)
