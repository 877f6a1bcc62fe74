"""What the PPO algorithms share: GAE, clipped values and their normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.losses import mean_of, value_loss
from marl_framework.algorithms.protocol import Symmetries
from marl_framework.algorithms.ranks import mean_over_ranks
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.state_values import StateValues
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config, NetworkSizes

NORMALIZER = "value_normalizer"
_LEAST_VARIANCE = 1e-2
_FORGETS = 1e-5  # share of what is known that a training step replaces, once there are many
_PRIOR = 1e-12  # weight of mean 0 and deviation 1, which are known at first


class ValueNormalizer(nn.Module):
    """Scales values by the mean and deviation of all targets so far (Yu et al. 2022, section 5.1).

    Running means of targets and of their squares, over their weight so far, as in the published
    code. Until the first update values stay as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.square: Tensor
        self.weight: Tensor
        for name, value in (("mean", 0.0), ("square", _PRIOR), ("weight", _PRIOR)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    @torch.no_grad()
    def update(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Take in the targets of a training step, of all ranks, unless one is not finite.

        For `weights` see `losses.mean_of`.
        """
        exact = targets.double()
        moments = (mean_of(exact, weights), mean_of(exact.square(), weights))
        new = mean_over_ranks(torch.stack(moments))
        share = _FORGETS * new.sum().isfinite().double()
        mean, square = new.nan_to_num(0.0, 0.0, 0.0).unbind()
        self.mean.lerp_(mean, share)
        self.square.lerp_(square, share)
        self.weight.lerp_(torch.ones_like(self.weight), share)

    def normalize(self, values: Tensor) -> Tensor:
        """Return values [...] as the critic gives them."""
        mean, deviation = self._moments(values)
        return (values - mean) / deviation

    def restore(self, outputs: Tensor) -> Tensor:
        """Return the critic's outputs [...] as values."""
        mean, deviation = self._moments(outputs)
        return outputs * deviation + mean

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation in the precision of a tensor."""
        mean = self.mean / self.weight
        variance = (self.square / self.weight - mean.square()).clamp(min=_LEAST_VARIANCE)
        return mean.to(like.dtype), variance.sqrt().to(like.dtype)


class PPO(StateValues):
    """An actor and a critic V(s) under proximal policy optimisation (Schulman et al. 2017).

    Targets and advantages come once a training step from the critic as it is then: generalised
    advantage estimation (Schulman et al. 2016), which is the TD(λ) return less V(s).

    Raises:
        ConfigError: `learning.clip_ratio` is 0.
    """

    has_target = False

    def __init__(
        self,
        config: Config,
        sizes: NetworkSizes,
        device: torch.device | str,
        symmetries: Symmetries | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        if not config.learning.clip_ratio:
            raise ConfigError(
                f"learning.clip_ratio: {config.experiment.algorithm} clips the ratio of "
                "probabilities, so 0 does not work; the paper has 0.2"
            )
        super().__init__(config, sizes, device, symmetries, graphs)
        self._normalizer = ValueNormalizer().to(self.device)

    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with returns, advantages and values."""
        outputs = self.evaluate(rollout).view(rollout.actions.shape)
        values = self._normalizer.restore(outputs)
        targets = self.returns(rollout, values)
        found = Transitions.of(rollout, targets, advantages=targets - values, old_values=outputs)
        if self.learning.value_normalization:
            self._normalizer.update(targets.flatten(), found.balanced().weights)
        return found

    def _judge(
        self, part: Transitions, values: Tensor, epsilon: float | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the policy, π and the advantages from before any update."""
        policy, probabilities, _ = super()._judge(part, values, epsilon)
        assert part.advantages is not None
        return policy, probabilities, part.advantages

    def action_values(self, outputs: Tensor) -> Tensor:
        """Return V(s) for each action, in the units of the returns."""
        return super().action_values(self._normalizer.restore(outputs))

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return `losses.value_loss` of outputs [B, 1] against normalised targets."""
        assert part.old_values is not None
        learning, targets = self.learning, self._normalizer.normalize(part.targets)
        return value_loss(
            outputs.squeeze(1),
            targets,
            part.old_values,
            learning.value_clip,
            learning.huber_delta,
            part.weights,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what `ActorCritic` does and the moments of the targets."""
        return {**super().state_dict(), NORMALIZER: self._normalizer.state_dict()}

    def take_value_scale(self, state: Mapping[str, Any]) -> None:
        """Load the moments of the targets alone, which the outputs of a critic are scaled by."""
        self._normalizer.load_state_dict(state[NORMALIZER])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; other keys of `state` are left alone."""
        super().load_state_dict(state)
        self.take_value_scale(state)
