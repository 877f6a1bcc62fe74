"""Distinct seeds for every split and process."""

from __future__ import annotations

SPLITS = ("training", "validation", "test")
DEPLOYMENT = "deployment"
"""Additional split: flights over a whole measured map."""
MAX_SEED = 2**20
MAX_RANK = 2**10


def split_seed(seed: int, split: str, rank: int = 0) -> int:
    """Return the seed of the generator that draws the missions of `split` on process `rank`.

    The result packs 20 bits of `seed`, 10 of `rank` and 2 of `split`, because torch's CPU generator
    (a Mersenne Twister) uses 32 bits of a seed. Raises ValueError if an argument is out of range.
    """
    check_split(split)
    if not 0 <= seed < MAX_SEED:
        raise ValueError(f"seed must lie in [0, {MAX_SEED}), got {seed}")
    if not 0 <= rank < MAX_RANK:
        raise ValueError(f"rank must lie in [0, {MAX_RANK}), got {rank}")
    return (seed << 12) | (rank << 2) | (*SPLITS, DEPLOYMENT).index(split)


def check_split(split: str) -> None:
    """Raise a ValueError unless `split` is one of `SPLITS` or `DEPLOYMENT`."""
    if split not in (*SPLITS, DEPLOYMENT):
        raise ValueError(f"split must be one of {', '.join((*SPLITS, DEPLOYMENT))}, got {split!r}")
