"""What a trainer asks of an algorithm, and an algorithm of its task's symmetries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.rollout import Rollout


class Algorithm(Protocol):
    """Acts for a team and learns from what it flew.

    Made as `MyAlgorithm(config, sizes, device, symmetries, graphs)`, see `COMAWrapper`. Nothing
    in `act` and `update` reads a tensor back to the host.
    """

    device: torch.device
    precision: torch.dtype
    """Of the networks' forward passes, and so of the maps in rollouts."""
    modules: Mapping[str, nn.Module]
    """All networks by name; `actor` is the one that acts, [B, C_a, X, Y] to logits [B, A]."""
    training_steps: int
    """Training steps made so far."""

    def act(self, observation: Tensor) -> Tensor:
        """Return policy logits [E, N, A] float32 of observations [E, N, C_a, X, Y]."""

    def update(
        self,
        rollout: Rollout,
        epsilon: float,
        generator: torch.Generator | None = None,
        steps: int = 1,
        rate: float = 1.0,
    ) -> dict[str, Tensor]:
        """Make training steps on whole episodes.

        Args:
            rollout: on several ranks this one's, as many episodes as the others'.
            epsilon: floor of the policy that flew them.
            generator: of all random numbers, on the device.
            steps: training steps that the rollout is for; `training_steps` grows by them.
            rate: what the configured learning rates are multiplied by.

        Returns:
            Scalars to log, on the device: those with names of `training.logging.METRICS`, and
            others under `algorithm/`. `skipped_updates`, where it is there, counts updates that
            were not finite and so not applied.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides how learning goes on, each module under its name."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; other keys of `state` are left alone."""


class Symmetries(Protocol):
    """Shows transitions as they would have been in a symmetric world."""

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw one symmetry for each of `num` transitions, [num] int64."""

    def take(self, batch: Transitions, index: Tensor, which: Tensor) -> Transitions:
        """Return the transitions `index` [B] of more, as symmetry `which` [B] shows them."""
