"""PPO algorithms: GAE, clipped value loss and value normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import value_loss
from marl_framework.algorithms.ranks import balanced, mean_of, mean_over_ranks
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.state_values import StateValues
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config

NORMALIZER = "value_normalizer"
_LEAST_VARIANCE = 1e-2
_UPDATE_SHARE = 1e-5  # step size of the running means
_PRIOR = 1e-12  # weight of the initial mean 0 and standard deviation 1


class ValueNormalizer(nn.Module):
    """Normalises values by running moments of the targets (Yu et al. 2022, section 5.1).

    Until the first update, values stay unchanged.
    """

    mean: Tensor
    square: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("mean", 0.0), ("square", _PRIOR), ("weight", _PRIOR)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    @torch.no_grad()
    def update(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Update the moments with finite targets of a step, weighted as in `mean_of`."""
        exact = targets.double()
        moments = (mean_of(exact, weights), mean_of(exact.square(), weights))
        new = mean_over_ranks(torch.stack(moments))
        share = _UPDATE_SHARE * new.sum().isfinite().double()
        mean, square = new.nan_to_num(0.0, 0.0, 0.0).unbind()
        self.mean.lerp_(mean, share)
        self.square.lerp_(square, share)
        self.weight.lerp_(torch.ones_like(self.weight), share)

    def normalize(self, values: Tensor) -> Tensor:
        """Convert values [...] to the scale of the critic's outputs."""
        mean, deviation = self._moments(values)
        return (values - mean) / deviation

    def restore(self, outputs: Tensor) -> Tensor:
        """Convert the critic's outputs [...] to the scale of the returns."""
        mean, deviation = self._moments(outputs)
        return outputs * deviation + mean

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean / self.weight
        variance = (self.square / self.weight - mean.square()).clamp(min=_LEAST_VARIANCE)
        return mean.to(like.dtype), variance.sqrt().to(like.dtype)


class PPO(StateValues):
    """Proximal policy optimisation of an actor and a critic V(s) (Schulman et al. 2017).

    Targets and advantages are computed with the critic as it is before its updates. The advantage
    is the generalised advantage estimate (Schulman et al. 2016): TD(λ) return minus V(s). Raises
    ConfigError if `learning.clip_ratio` is 0.
    """

    has_target = False

    def __init__(self, config: Config, *arguments: Any, **named: Any) -> None:
        if not config.learning.clip_ratio:
            name = config.experiment.algorithm
            raise ConfigError(f"learning.clip_ratio: must be above 0 for {name}; try 0.2")
        super().__init__(config, *arguments, **named)
        self._normalizer = ValueNormalizer().to(self.device)

    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with targets, advantages and old values."""
        outputs = self.evaluate(rollout).view(rollout.actions.shape)
        values = self._normalizer.restore(outputs)
        targets = self.returns(rollout, values)
        flat = Transitions.of(rollout, targets, advantages=targets - values, old_values=outputs)
        if self.learning.value_normalization:
            self._normalizer.update(flat.targets, balanced(flat.weights))
        return flat

    def action_values(self, outputs: Tensor) -> Tensor:
        """Repeat V(s), on the scale of the returns, for each action."""
        return super().action_values(self._normalizer.restore(outputs))

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return `losses.value_loss` for outputs [B, 1] and normalised targets."""
        assert part.old_values is not None
        targets, learning = self._normalizer.normalize(part.targets), self.learning
        options = learning.value_clip, learning.huber_delta, part.weights
        return value_loss(outputs.squeeze(1), targets, part.old_values, *options)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `ActorCritic` and the normaliser's moments."""
        return {**super().state_dict(), NORMALIZER: self._normalizer.state_dict()}

    def take_value_scale(self, state: Mapping[str, Any]) -> None:
        """Load only the normaliser's moments, which scale the critic's outputs."""
        self._normalizer.load_state_dict(state[NORMALIZER])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; ignore other keys of `state`."""
        super().load_state_dict(state)
        self.take_value_scale(state)


class IPPO(PPO):
    """Independent PPO: the critic sees the UAV's own observation (de Witt et al. 2020)."""

    central = False


class MAPPO(PPO):
    """PPO with a central critic: it sees observation and team state (Yu et al. 2022)."""
