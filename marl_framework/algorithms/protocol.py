"""Interface between trainers and algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from marl_framework.algorithms.rollout import Rollout


class Algorithm(Protocol):
    """Acts for a team and learns from its rollouts.

    Constructed as `MyAlgorithm(config, sizes, device, symmetries, graphs)`, see `COMAWrapper`.
    `act` and `update` never read a tensor back to the host.
    """

    device: torch.device
    precision: torch.dtype
    """Precision of the networks' forward passes, and of the maps in rollouts."""
    modules: Mapping[str, nn.Module]
    """All networks by name; `actor` is the one that acts, [B, C_a, X, Y] to logits [B, A]."""
    training_steps: int
    """Number of training steps made."""

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
            rollout: whole episodes; the same number on every rank.
            epsilon: floor of the policy that flew them.
            generator: source of all random numbers, on the device.
            steps: number of training steps that the rollout is for; added to `training_steps`.
            rate: factor of the configured learning rates.

        Returns:
            Scalars to log, on the device: with names of `training.logging.METRICS`, others under
            `algorithm/`. Optional `skipped_updates`: number of updates that were not finite and
            therefore not applied.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the complete training state, each module under its name."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; ignore other keys of `state`."""
