"""One random seed for each split and process, no two alike."""

from __future__ import annotations

SPLITS = ("training", "validation", "test")
DEPLOYMENT = "deployment"
"""In place of a split: the whole of a measured map, trained on or not."""
MAX_SEED = 2**20
MAX_RANK = 2**10


def split_seed(seed: int, split: str, rank: int = 0) -> int:
    """Return the seed of the generator that draws the missions of `split` on process `rank`.

    Other arguments give another seed: it holds 20 bits of `seed`, 10 of `rank` and 2 of `split`,
    and torch's CPU generator (a Mersenne Twister) keeps 32 bits of a seed.

    Raises:
        ValueError: `seed`, `split` or `rank` is out of range.
    """
    check_split(split)
    if not 0 <= seed < MAX_SEED:
        raise ValueError(f"seed {seed} must lie in [0, {MAX_SEED})")
    if not 0 <= rank < MAX_RANK:
        raise ValueError(f"rank {rank} must lie in [0, {MAX_RANK})")
    return (seed << 12) | (rank << 2) | (*SPLITS, DEPLOYMENT).index(split)


def check_split(split: str) -> None:
    """Raise a ValueError unless `split` is one of `SPLITS` or `DEPLOYMENT`."""
    if split not in (*SPLITS, DEPLOYMENT):
        raise ValueError(f"split {split!r} is none of {', '.join((*SPLITS, DEPLOYMENT))}")
