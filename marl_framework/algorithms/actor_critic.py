"""Base class of actor-critic algorithms: networks, optimisers, updates and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.batch import Symmetries, Transitions
from marl_framework.algorithms.diagnostics import describe_batch, join, summarize
from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.losses import Losses, TritonLosses, td_lambda_returns
from marl_framework.algorithms.optimisers import (
    Learner,
    Step,
    load_optimizer,
    load_scaler,
    set_rate,
)
from marl_framework.algorithms.policy import Floor, kl_divergence, policy_probabilities
from marl_framework.algorithms.ranks import mean_of, mean_over_ranks, normalized
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.derived import passes
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config, NetworkSizes
from marl_framework.device import (
    autocast,
    configure_backends,
    grad_scaler,
    resolve_precision,
    uses_triton,
)
from marl_framework.networks.convolutional import place
from marl_framework.networks.registry import make_actor


def target_chunk(device: torch.device | None) -> int:
    """Return the number of transitions in one forward pass of the target critic."""
    return 16384 if device is not None and device.type == "cuda" else 4096


@torch.no_grad()
def update_target(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Set `target` to (1 - tau)·`target` + tau·`source`; copy buffers."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.lerp_(new, tau) if tau < 1 else old.copy_(new)
    for buffer, new_buffer in zip(target.buffers(), source.buffers(), strict=True):
        buffer.copy_(new_buffer)


class ActorCritic(ABC):
    """An actor and a critic, updated under automatic mixed precision.

    A subclass defines `new_critic`, `transitions` and `credited`.

    Args:
        config: configuration; sections networks, learning and compute are used.
        sizes: shapes of the task, for missions `config.network_sizes`.
        device: device of all networks.
        symmetries: symmetries of the task, used for data augmentation.
        graphs: runs whole updates as CUDA graphs.

    Attributes:
        actor, critic: modules in float32; forward passes run in `precision`.
        target_critic: slow copy of the critic, if the algorithm has one.
        modules: all networks by name; `actor` is the policy network.
        learning: section `learning` of the configuration.
        training_steps: number of training steps so far.

    Raises:
        ConfigError: `learning.kl_limit` is combined with float16.
    """

    has_target = True
    """Whether `evaluate` uses a target critic instead of the critic."""

    def __init__(
        self,
        config: Config,
        sizes: NetworkSizes,
        device: torch.device | str,
        symmetries: Symmetries | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        compute, learning = config.compute, config.learning
        self.device = torch.device(device)
        self.sizes, self.learning = sizes, learning
        self.precision = resolve_precision(compute.precision, self.device)
        self.training_steps = 0
        self.scaler = grad_scaler(self.device, self.precision)
        if learning.kl_limit and self.scaler.is_enabled():
            raise ConfigError(
                "learning.kl_limit: not supported with float16; use compute.precision=bfloat16 or "
                "float32, or learning.kl_limit=0"
            )
        configure_backends(compute, self.device)
        self._symmetries, self._graphs = symmetries, graphs
        triton = uses_triton(compute, self.device)
        self._losses = TritonLosses(self.device) if triton else Losses()
        self._halted = torch.zeros((), device=self.device)  # 1 once the KL limit is exceeded
        self._idle: Tensor | None = None  # 1 if no UAV of the batch is active
        self._teacher: nn.Module | None = None
        self.actor = place(make_actor(config.networks, compute, sizes), compute, self.device)
        self.critic = place(self.new_critic(config), compute, self.device)
        self.modules = {"actor": self.actor, "critic": self.critic}
        self._targets: list[tuple[nn.Module, nn.Module]] = []  # with the networks they follow
        if self.has_target:
            self.target_critic = place(self.new_critic(config), compute, self.device)
            self.target_critic.requires_grad_(False)
            self.modules["target_critic"] = self.target_critic
            self._targets.append((self.target_critic, self.critic))
            self.update_targets()
        self._shared = self.device, self.scaler, self._losses.step_rule, graphs is not None
        self._actor = Learner(self.actor, learning.actor, *self._shared)
        self._critic = Learner(self.critic, learning.critic, *self._shared)
        self._learners = {"actor": self._actor, "critic": self._critic}
        self.actor_optimizer = self._actor.optimizer
        self.critic_optimizer = self._critic.optimizer

    @abstractmethod
    def new_critic(self, config: Config) -> nn.Module:
        """Build a critic from maps [B, C_c, X, Y] to outputs [B, …]."""

    @abstractmethod
    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with their targets; called before any update."""

    @abstractmethod
    def credited(self, part: Transitions) -> Tensor | None:
        """Return the credit of the actions taken, [B]; the baseline is subtracted from it.

        The baseline is Σ_a π(a|o)·Q(s, a), with Q from `action_values`. None means credit Q(s, a).
        """

    def passes(
        self, rollout: Rollout, epsilon: Floor, generator: torch.Generator | None
    ) -> Iterator[Transitions]:
        """Yield the transitions of each of `data_passes` passes; here all passes share them."""
        flat = self.with_teacher(self.transitions(rollout))
        for _ in range(self.learning.data_passes):
            yield flat

    def receive(self, rollout: Rollout) -> None:  # noqa: B027 - optional in subclasses
        """Prepare for the training steps that follow a rollout; here nothing."""

    def action_values(self, outputs: Tensor) -> Tensor:
        """Convert the critic's outputs to Q(s, ·) [B, A]."""
        return outputs

    def policy_values(self, outputs: Tensor, logits: Tensor, part: Transitions) -> Tensor:
        """Return Q(s, ·) [B, A] before the update; by default `action_values`."""
        return self.action_values(outputs)

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return the critic's loss for differentiable `outputs`."""
        return self._losses.critic_loss(outputs, part)

    def policy_loss(
        self, logits: Tensor, part: Transitions, outputs: Tensor, credit: Tensor, epsilon: Floor
    ) -> Tensor:
        """Return the actor's loss, without the teacher.

        Args:
            logits: differentiable policy logits, [B, A].
            part: B transitions.
            outputs: the critic's outputs before the update, [B, …].
            credit: advantages of the actions taken, [B].
            epsilon: floor of the policy.
        """
        options = self.learning.entropy_coefficient, self.learning.clip_ratio
        return self._losses.actor_loss(logits, part, credit, epsilon, *options)

    def returns(self, rollout: Rollout, values: Tensor, lambda_: float | None = None) -> Tensor:
        """Compute TD(λ) returns [T, E, N] of values [T, E, N]; default λ: `learning.lambda`."""
        gamma = self.learning.gamma
        lambda_ = self.learning.lambda_ if lambda_ is None else lambda_
        return td_lambda_returns(rollout.rewards, values, gamma, lambda_, rollout.active)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return policy logits [E, N, A] float32 for observations [E, N, C_a, X, Y]."""
        with self._amp():
            logits: Tensor = self.actor(observation.flatten(0, 1))
        return logits.unflatten(0, observation.shape[:2])

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Tensor:
        """Return outputs [T·E·N, …] of the target critic, or the critic if there is no target."""
        critic = self.target_critic if self.has_target else self.critic
        chunk = target_chunk(self.device)
        maps = rollout.observations, rollout.critic_maps
        chunks = zip(*(field.flatten(0, 2).split(chunk) for field in maps), strict=True)
        with self._amp():
            return torch.cat([critic(torch.cat(pair, dim=1)) for pair in chunks])

    def follow_teacher(self, actor: nn.Module) -> None:
        """Add the weighted KL(teacher ‖ policy) to the actor's loss (`learning.teacher`).

        See Schmitt et al. 2018, arXiv 1803.03835. The weight falls linearly to 0.

        Args:
            actor: teacher network from [B, C_a, X, Y] to logits [B, A]; its weights are frozen.
        """
        self._teacher = actor.requires_grad_(False)

    def _teacher_weight(self) -> float:
        teacher, step = self.learning.teacher, self.training_steps
        factor = max(1 - step / teacher.anneal_steps, 0.0) if teacher.anneal_steps else 1.0
        return teacher.weight * factor

    @torch.no_grad()
    def with_teacher(self, flat: Transitions) -> Transitions:
        """Return the transitions with the teacher's policy, unless the teacher's weight is 0."""
        if self._teacher is None or not self._teacher_weight():
            return flat
        with self._amp():
            logits = torch.cat([self._teacher(chunk) for chunk in flat.observations.split(4096)])
        return replace(flat, teacher=policy_probabilities(logits, flat.masks, 0.0))

    def update(
        self,
        rollout: Rollout,
        epsilon: float,
        generator: torch.Generator | None = None,
        steps: int = 1,
        rate: float = 1.0,
    ) -> dict[str, Tensor]:
        """Perform training steps: make `data_passes` passes over the data of `passes`.

        Each pass visits all transitions, with `batch_number` updates per training step. For
        arguments see `Algorithm.update`.

        Returns:
            Scalars on the device, keyed by names in `training.logging.METRICS`: means over all
            batches and ranks. Metrics of policy and critic are measured before each update of the
            last pass.
        """
        self.receive(rollout)
        self._set_rates(rate)
        if self._graphs is None:
            stats = self._run_updates(rollout, generator, steps, epsilon)
        else:
            run_updates = partial(self._run_updates, rollout, generator, steps)
            key = ("update", steps, id(rollout))  # rollouts differ by area
            stats = self._graphs.run(key, rollout, run_updates, epsilon, generator)
            copies = torch.stack(list(stats.values())).unbind()  # replays overwrite `stats`
            stats = dict(zip(stats, copies, strict=True))
        self.training_steps += steps
        self._move_targets(steps)
        return stats

    def _run_updates(
        self, rollout: Rollout, generator: torch.Generator | None, steps: int, epsilon: Floor
    ) -> dict[str, Tensor]:
        learning = self.learning
        epsilon = self._losses.convert_epsilon(epsilon)
        self._halted.zero_()
        number = learning.batch_number * steps
        records = []
        for data_pass, flat in enumerate(self.passes(rollout, epsilon, generator)):
            for batch in flat.shuffled(number, generator, self._symmetries):
                micro_batches = self._begin(batch)
                outputs, critic = self._update_critic(micro_batches)
                columns, actor = self._update_actor(batch, micro_batches, outputs, epsilon)
                self.scaler.update()
                record = {
                    "critic_loss": critic.loss,
                    "actor_loss": actor.loss,
                    "critic_gradient_norm": critic.norm,
                    "actor_gradient_norm": actor.norm,
                    "skipped_updates": critic.bad + actor.bad,
                }
                if learning.kl_limit:
                    record["kl_halted"] = self._halted.clone()
                if data_pass == learning.data_passes - 1:
                    record |= describe_batch(batch, *map(join, zip(*columns, strict=True)))
                records.append(record)
        return summarize(records, flat)

    def _begin(self, batch: Transitions) -> list[Transitions]:
        """Note whether no UAV of a batch is active on any rank; return its micro-batches."""
        weights = batch.weights
        self._idle = None if weights is None else (mean_over_ranks(weights.mean()) == 0).float()
        size = (self.learning.micro_batch or len(batch)) // batch.team * batch.team or batch.team
        return [batch[start : start + size] for start in range(0, len(batch), size)]

    def _update_critic(self, micro_batches: list[Transitions]) -> tuple[list[Tensor], Step]:
        """Update the critic on a batch; return its previous outputs per micro-batch."""
        before = []

        def compute_loss(index: int) -> Tensor:
            with self._amp():
                outputs = self._critic.network(micro_batches[index].critic_inputs)
            before.append(outputs.detach())
            return self.critic_loss(outputs, micro_batches[index])

        loss = self._critic.backward([len(part) for part in micro_batches], compute_loss)
        return before, self._critic.step(loss, self._idle)

    def _update_actor(
        self, batch: Transitions, parts: list[Transitions], outputs: list[Tensor], epsilon: Floor
    ) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Step]:
        """Update the actor; return previous values, π and advantages per micro-batch."""
        learning, losses, sizes = self.learning, self._losses, [len(part) for part in parts]
        single = len(parts) == 1
        described, divergences = [], []
        # Normalisation needs all advantages first; a single micro-batch runs forward only once.
        computed = []
        if single or learning.normalize_advantages:
            with torch.set_grad_enabled(single):
                pairs = zip(parts, outputs, strict=True)
                computed = [self._compute_advantages(part, out, epsilon) for part, out in pairs]
        scaled: Sequence[Tensor] = [advantages for *_, advantages in computed]
        if learning.normalize_advantages:
            scaled = normalized(join(scaled), batch.weights, losses.fused).split(sizes)

        def compute_loss(index: int) -> Tensor:
            part, out = parts[index], outputs[index]
            result = computed[index] if single else self._compute_advantages(part, out, epsilon)
            logits, values, probabilities, advantages = result
            described.append((values, probabilities, advantages))
            if learning.kl_limit:
                divergence = kl_divergence(part.old_probabilities, probabilities)
                if part.weights is not None:
                    divergence = divergence * part.weights
                divergences.append(divergence.sum())
            advantages = scaled[index] if scaled else advantages
            loss = self.policy_loss(logits, part, out, advantages, epsilon)
            if part.teacher is not None:
                pi = policy_probabilities(logits, part.masks, epsilon)
                kl = kl_divergence(part.teacher, pi)
                loss = loss + self._teacher_weight() * mean_of(kl, part.weights)
            return loss

        loss = self._actor.backward(sizes, compute_loss)
        if learning.kl_limit:
            divergence = mean_over_ranks(torch.stack(divergences).sum() / len(batch))
            self._halted.logical_or_(divergence > learning.kl_limit)
        halted = self._halted if self._idle is None else self._halted + self._idle
        return described, self._actor.step(loss, halted)

    def _compute_advantages(
        self, part: Transitions, outputs: Tensor, epsilon: Floor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits, Q(s, ·), π [B, A] and advantages [B]; a part's own have precedence."""
        with self._amp():
            logits = self._actor.network(part.observations)
        values = self.policy_values(outputs, logits.detach(), part)
        options = epsilon, self.credited(part)
        logits, pi, advantages = self._losses.compute_advantages(logits, part, values, *options)
        return logits, values, pi, advantages if part.advantages is None else part.advantages

    def fit_critic(self, rollout: Rollout, generator: torch.Generator | None = None) -> Tensor:
        """Train only the critic, in one pass over whole episodes; then copy it to the target.

        Return the mean batch loss, on the device. For arguments see `Algorithm.update`.
        """
        flat, losses = self.transitions(rollout), []
        for batch in flat.shuffled(self.learning.batch_number, generator, self._symmetries):
            losses.append(self._update_critic(self._begin(batch))[1].loss)
            self.scaler.update()
        self.update_targets()
        return torch.stack(losses).mean()

    def update_targets(self, tau: float = 1.0) -> None:
        """Move all target networks towards the networks that they follow; 1 copies them."""
        for target, source in self._targets:
            update_target(target, source, tau)

    def _move_targets(self, steps: int) -> None:
        learning, now = self.learning, self.training_steps
        if learning.target_update_mode == "soft":
            self.update_targets(learning.tau if steps == 1 else 1 - (1 - learning.tau) ** steps)
        elif passes(learning.copy_rate, now - steps, now):
            self.update_targets()

    def _set_rates(self, factor: float) -> None:
        for learner in self._learners.values():
            set_rate(learner.optimizer, learner.rate * factor)

    def _amp(self) -> AbstractContextManager[Any]:
        return autocast(self.device, self.precision)

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimisers, scaler and step count; loadable with `weights_only=True`."""
        return {
            **{name: module.state_dict() for name, module in self.modules.items()},
            **{f"{n}_optimizer": each.optimizer.state_dict() for n, each in self._learners.items()},
            "scaler": self.scaler.state_dict(),
            "training_step": self.training_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; ignore other keys of `state`."""
        for name, module in self.modules.items():
            module.load_state_dict(state[name])
        for name, learner in self._learners.items():
            load_optimizer(learner.optimizer, state[f"{name}_optimizer"])
        self._set_rates(1.0)
        if self._graphs is not None:
            self._graphs.forget()  # recordings use the optimisers' previous tensors
        load_scaler(self.scaler, state["scaler"])
        self.training_steps = int(state["training_step"])
