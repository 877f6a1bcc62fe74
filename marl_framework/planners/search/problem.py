"""Search problem of one UAV, and its solution."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Problem(NamedTuple):
    """Search problem of one UAV in each of E missions."""

    position: Tensor
    """Lattice position, [E, 3]."""
    mask: Tensor
    """Allowed first actions, [E, A]."""
    allowed_moves: Tensor
    """Allowed actions at each position, [E, X, Y, Z, A]; see `MissionState.moves`. Windows share
    [1, …]."""
    entropy: Tensor
    """Entropy around each lattice position, [E, X, Y]."""
    horizon: Tensor
    """Number of moves left, [E]."""
    caution: Tensor
    """Caution of the UAV, [E, 1]; see `MissionState.caution`."""
    max_horizon: int
    """Upper bound of `horizon`."""

    def by_action(self) -> Problem:
        """Return one problem per first action, [E·A]; no path solves one of a forbidden action."""
        actions = self.mask.shape[1]
        moves = self.allowed_moves  # windows share them
        if len(moves) > 1:
            moves = moves.repeat_interleave(actions, 0)
        return self._replace(
            position=self.position.repeat_interleave(actions, 0),
            mask=torch.diag_embed(self.mask).flatten(0, 1),
            allowed_moves=moves,
            entropy=self.entropy.repeat_interleave(actions, 0),
            horizon=self.horizon.repeat_interleave(actions, 0),
        )


class Plan(NamedTuple):
    """Best path in each of E missions."""

    action: Tensor
    """First action, [E] int64."""
    left: Tensor
    """Entropy that the path leaves around each lattice position, [E, X, Y]."""
    gains: Tensor | None = None
    """Entropy that the best path of each allowed first action removes, [E, A]; only from a search
    with `rate_actions`."""
