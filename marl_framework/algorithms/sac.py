"""Discrete soft actor-critic (Christodoulou 2019, arXiv 1910.07207) with replayed missions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic, target_chunk
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.losses import retrace_returns, select_taken
from marl_framework.algorithms.optimisers import Learner, Step, load_optimizer, set_rate
from marl_framework.algorithms.policy import Floor, policy_entropy, policy_probabilities
from marl_framework.algorithms.ranks import mean_of, number_of_ranks
from marl_framework.algorithms.replay import Replay, stored_missions
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.state_values import SomeChannels
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.networks.registry import make_critic

GIB = 2**30
TEMPERATURE_RATE = 3.0
"""Learning rate of the temperature, relative to the actor's.

Christodoulou's rates are equal; with few updates the temperature then hardly leaves its initial
value. A tenfold rate let it fall before the critics had learned, and policies stopped exploring.
"""


class Temperature(nn.Module):
    """Learned weight α of the policy's entropy.

    `initial` must be above 0.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_value = nn.Parameter(torch.tensor(math.log(initial)))

    @property
    def value(self) -> Tensor:
        """The weight α, [], as a constant."""
        return self.log_value.detach().exp()

    def forward(self, surplus: Tensor) -> Tensor:
        """Return the loss log α · (H - H̄) [B] for entropies that exceed their target by [B]."""
        return self.log_value * surplus


class TwinCritic(nn.Module):
    """Two critics with the same inputs [B, C, X, Y]; outputs are stacked, [B, 2, A]."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.critics = nn.ModuleList((first, second))

    def forward(self, maps: Tensor) -> Tensor:
        """Run both critics."""
        return torch.stack([critic(maps) for critic in self.critics], dim=1)


class SAC(ActorCritic):
    """Soft actor-critic for discrete actions: learns from missions drawn from a `Replay`.

    Each pass over the data draws as many stored missions as the training step flies, and computes
    their targets with the current networks. The critics see the actions of the other UAVs as they
    were flown, also in the targets.

    Attributes:
        temperature: weight of the entropy; learned, in `modules`.

    Raises:
        ConfigError: `logging.save_replay` is combined with several ranks, or missions of different
            areas have different budgets.
    """

    central = True
    """Whether the critics see the critic's maps in addition to the UAV's observation."""

    def __init__(self, config: Config, *arguments: Any, **named: Any) -> None:
        self._saves = config.logging.save_replay
        if self._saves and number_of_ranks() > 1:
            raise ConfigError(
                "logging.save_replay: not supported with several ranks; set it to false, a resumed "
                "run refills its replay"
            )
        if len({area.missions.episode_length for area in config.areas}) > 1:
            raise ConfigError(
                "environment.area: a replay stores missions of one length; give all areas the same "
                "budget, or use another algorithm"
            )
        super().__init__(config, *arguments, **named)
        self.temperature = Temperature(self.learning.temperature).to(self.device)
        self.modules["temperature"] = self.temperature
        rule, recorded = self._losses.step_rule, self._graphs is not None
        settings, shared = self.learning.actor, (self.device, self.scaler, rule, recorded)
        self._temperature = Learner(self.temperature, settings, *shared)
        self._replay: Replay | None = None

    def new_critic(self, config: Config) -> nn.Module:
        """Build two critics from maps [B, C_c, X, Y] to values of own actions [B, 2, A]."""
        own, channels = self.sizes.actor_channels, self.sizes.critic_channels
        sizes = self.sizes if self.central else replace(self.sizes, critic_channels=own)
        networks, compute = config.networks, config.compute
        twins = TwinCritic(*(make_critic(networks, compute, sizes) for _ in range(2)))
        return twins if self.central else SomeChannels(twins, channels, range(own, channels))

    def action_values(self, outputs: Tensor) -> Tensor:
        """Return the smaller one of both critics' values, [B, A]."""
        return outputs.amin(1)

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return the sum of both critics' losses for outputs [B, 2, A]."""
        first, second = outputs.unbind(1)
        return super().critic_loss(first, part) + super().critic_loss(second, part)

    def credited(self, part: Transitions) -> Tensor | None:
        """Return None: actions are credited with Q(s, a)."""
        return None

    def policy_loss(
        self, policy: Tensor, part: Transitions, values: Tensor, credit: Tensor, epsilon: Floor
    ) -> Tensor:
        """Return the mean of -Σ_a π(a)·Q(s, a) - α·H(π)."""
        pi = self._losses.policy_probabilities(policy, part, epsilon)
        soft_value = (pi * values).sum(-1) + self.temperature.value * policy_entropy(pi)
        return -mean_of(soft_value, part.weights)

    def update(
        self,
        rollout: Rollout,
        epsilon: float,
        generator: torch.Generator | None = None,
        steps: int = 1,
        rate: float = 1.0,
    ) -> dict[str, Tensor]:
        """Store the rollout, then perform training steps on stored missions.

        For arguments and results see `ActorCritic.update`.
        """
        if self._replay is None or not self._replay.fits(rollout):
            self._replay = self._new_replay(rollout, least=rollout.rewards.shape[1])
        self._replay.write(rollout)
        stats = super().update(rollout, epsilon, generator, steps, rate)
        return {**stats, "temperature": self.temperature.value}

    def _new_replay(self, like: Rollout, least: int) -> Replay:
        moves, _, agents = like.actions.shape
        missions = self.learning.replay_size // (number_of_ranks() * moves * agents)
        return Replay(max(missions, least), like)

    def passes(
        self, rollout: Rollout, epsilon: Floor, generator: torch.Generator | None
    ) -> Iterator[Transitions]:
        """Yield for each pass the transitions of as many stored missions, with new targets."""
        assert self._replay is not None
        for _ in range(self.learning.data_passes):
            drawn = self._replay.sample(rollout.rewards.shape[1], generator)
            yield self.with_teacher(Transitions.of(drawn, self.targets(drawn, epsilon)))

    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with targets for the policy without a floor."""
        return Transitions.of(rollout, self.targets(rollout, 0.0))

    @torch.no_grad()
    def targets(self, rollout: Rollout, epsilon: Floor) -> Tensor:
        """Compute soft Retrace(λ) targets [T, E, N] of whole missions under the current policy."""
        lead, learning = rollout.actions.shape, self.learning
        values = self.action_values(self.evaluate(rollout)).view(*lead, -1)
        chunks = rollout.observations.flatten(0, 2).split(target_chunk(self.device))
        with self._amp():
            logits = torch.cat([self.actor(chunk) for chunk in chunks]).view(*lead, -1)
        pi = policy_probabilities(logits, rollout.masks, epsilon)
        soft_values = (pi * values).sum(-1) + self.temperature.value * policy_entropy(pi)
        taken, flown = (select_taken(q, rollout.actions) for q in (pi, rollout.probabilities))
        traces = learning.lambda_ * (taken / flown).clamp(max=1)
        taken = select_taken(values, rollout.actions)
        options = learning.gamma, rollout.active
        return retrace_returns(rollout.rewards, soft_values, taken, traces, *options)

    def _update_actor(
        self, batch: Transitions, parts: list[Transitions], values: list[Tensor], epsilon: Floor
    ) -> tuple[list[tuple[Tensor, Tensor]], Step]:
        """Update the actor on a batch, then the temperature; see the base class."""
        policies, step = super()._update_actor(batch, parts, values, epsilon)
        share = self.learning.target_entropy

        def compute_loss(index: int) -> Tensor:
            part, (pi, _) = parts[index], policies[index]
            target = share * part.masks.sum(-1).log()
            return mean_of(self._temperature.network(policy_entropy(pi) - target), part.weights)

        loss = self._temperature.backward([len(part) for part in parts], compute_loss)
        self._temperature.step(loss)
        return policies, step

    def _set_rates(self, factor: float) -> None:
        super()._set_rates(factor)
        rate = TEMPERATURE_RATE * self.learning.actor.learning_rate
        set_rate(self._temperature.optimizer, rate * factor)

    def notes(self) -> Sequence[str]:
        """Return a line about the replay, printed before the training."""
        sizes, number = self.sizes, self.learning.replay_size
        cells = sizes.critic_channels * sizes.shape[0] * sizes.shape[1]
        size = f"{number * cells * self.precision.itemsize / GIB:.2g} GiB"
        text = f"replay: {number:,} transitions, {size}"
        if self._saves:
            return [f"{text}, also in every checkpoint"]
        refilled = ", empty after resuming and filled again" if self.training_steps else ""
        return [f"{text}{refilled}; logging.save_replay=true saves it with checkpoints"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `ActorCritic`, the temperature's and, if saved, the replay's."""
        state = super().state_dict()
        state["temperature_optimizer"] = self._temperature.optimizer.state_dict()
        if self._saves and self._replay is not None:
            state["replay"] = self._replay.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; ignore other keys of `state`."""
        super().load_state_dict(state)
        load_optimizer(self._temperature.optimizer, state["temperature_optimizer"])
        self._set_rates(1.0)
        self._replay = None
        if self._saves and "replay" in state:
            stored = stored_missions(state["replay"]).tensors()
            for name in ("observations", "critic_maps"):
                stored[name] = stored[name].to(self.precision)
            rollout = Rollout(**{name: field.to(self.device) for name, field in stored.items()})
            self._replay = self._new_replay(rollout, least=1)  # grows with the first rollout
            self._replay.write(rollout)


class ISAC(SAC):
    """Independent SAC: the critics see only the UAV's own observation."""

    central = False
