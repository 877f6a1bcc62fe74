"""Which edges of a tree to follow next, for several walkers at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EXPLORATION = 2.5  # weight of the prior against the values found
_DIGITS = 5  # of scores; equal ones stay equal, whatever rounding makes of them


class Edges(NamedTuple):
    """Actions at the node that each of K walkers has reached; all [E, K, A]."""

    free: Tensor
    """May be followed, bool."""
    new: Tensor
    """Leads to no node yet, bool; only one walker of a node may follow it."""
    visits: Tensor
    """Walkers that have followed it."""
    values: Tensor
    """Best flight found through it, between 0 and 1; of new edges what the node promises."""
    priors: Tensor
    """How good it looks before anything is found; sums to 1."""


def select(node: Tensor, walks: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
    """Choose an edge for each walker by PUCT with virtual loss.

    Walkers choose in turn: an edge that earlier ones of the same node have just chosen counts as
    visited and lost, with value 0, so that they spread. Every choice lowers the score of its own
    edge and of no other. So the r-th walker of a node takes the r-th highest of the scores that
    the edges have after 0, 1, 2, … choices, and all walkers choose at once.

    Args:
        node: where each walker is, [E, K].
        walks: whether it is still on its way, [E, K] bool.
        edges: of these nodes.

    Returns:
        Action of each walker, [E, K], and whether it found one, [E, K] bool.
    """
    walkers = node.shape[1]
    taken = torch.arange(walkers, device=node.device)  # choices of earlier walkers
    before = edges.visits.unsqueeze(-1)
    after = before + taken
    found = edges.values.unsqueeze(-1) * before.clamp(min=1) / after.clamp(min=1)
    total = edges.visits.sum(-1)[..., None, None] + 1
    hoped = EXPLORATION * edges.priors.unsqueeze(-1) * total.sqrt() / (1 + after)
    free = edges.free.unsqueeze(-1) & ((taken == 0) | ~edges.new.unsqueeze(-1))
    scores = (found + hoped).round(decimals=_DIGITS).masked_fill(~free, -torch.inf).flatten(2)
    ranked = scores.sort(dim=-1, descending=True, stable=True)
    together = (node.unsqueeze(2) == node.unsqueeze(1)) & walks.unsqueeze(1)
    rank = together.tril(-1).sum(-1, keepdim=True)
    best = ranked.values.gather(2, rank).squeeze(2)
    action = ranked.indices.gather(2, rank).squeeze(2) // walkers
    return action, walks & (best > -torch.inf)
