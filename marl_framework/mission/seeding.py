"""One random seed per split and process, so that no two streams of draws ever meet."""

from __future__ import annotations

SPLITS = ("training", "validation", "test")
DEPLOYMENT = "deployment"
"""Not a split of a data set: flies a whole measured map, whatever was trained on."""
MAX_SEED = 2**20
MAX_RANK = 2**10


def split_seed(seed: int, split: str, rank: int = 0) -> int:
    """Seed of the generator that draws the missions of `split` on process `rank`.

    Injective: 20 bits of `seed`, 10 bits of `rank` and 2 bits of `split` side by side. They fill
    32 bits exactly, all that torch's CPU generator (a Mersenne Twister) keeps of a seed.

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
