"""What actor-critic algorithms share: networks, optimisers, updates and their saving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.batch import (
    POWER_SUMS,
    Transitions,
    diagnostics,
    spreads_over_ranks,
)
from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.judging import Losses
from marl_framework.algorithms.kickstarting import Kickstart
from marl_framework.algorithms.losses import mean_of, td_lambda_returns
from marl_framework.algorithms.optimisers import (
    descend,
    load_optimizer,
    load_scaler,
    make_adam,
    set_rate,
)
from marl_framework.algorithms.policy import kl_divergence
from marl_framework.algorithms.protocol import Symmetries
from marl_framework.algorithms.ranks import (
    exchange_gradients,
    mean_over_ranks,
    means_over_ranks,
    with_shared_gradients,
)
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.threads import with_batch_threads
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import ComputeConfig
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
    """Return how many transitions the target critic takes at once."""
    return 16384 if device is not None and device.type == "cuda" else 4096


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move `target` towards `source` by the share `tau`, in place; 1 copies. Buffers are copied."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.lerp_(new, tau) if tau < 1 else old.copy_(new)
    for mine, given in zip(target.buffers(), source.buffers(), strict=True):
        mine.copy_(given)


class ActorCritic(ABC):
    """An actor, a critic and their updates under automatic mixed precision.

    An algorithm says what its critic is (`new_critic`), what transitions it learns from
    (`transitions`) and what an action is credited with (`credited`). It may change the losses.

    Args:
        config: networks, learning and compute.
        sizes: what the task asks of the networks; `config.network_sizes` for missions.
        device: where everything lives.
        symmetries: of the task, to learn from turned transitions too.
        graphs: run whole updates as CUDA graphs.

    Attributes:
        actor, critic: modules in float32; forward passes run in `precision`.
        target_critic: follows the critic, where the algorithm has one.
        modules: the same by name; `actor` is the one that acts.
        learning: the section of the configuration.
        training_steps: made so far.
    """

    has_target = True
    """Whether `evaluate` asks a target critic, or the critic as it is."""

    def __init__(
        self,
        config: Config,
        sizes: NetworkSizes,
        device: torch.device | str,
        symmetries: Symmetries | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.device = torch.device(device)
        self._symmetries = symmetries
        self._graphs = graphs
        self.sizes = sizes
        self.precision = resolve_precision(config.compute.precision, self.device)
        self.training_steps = 0
        self._halted = torch.zeros((), device=self.device)
        self._losses = _make_losses(config.compute, self.device)
        self.learning = learning = config.learning
        self._kickstart: Kickstart | None = None
        configure_backends(config.compute, self.device)
        actor = make_actor(config.networks, config.compute, sizes)
        self.actor = place(actor, config.compute, self.device)
        self.critic = place(self.new_critic(config), config.compute, self.device)
        self.modules = {"actor": self.actor, "critic": self.critic}
        if self.has_target:
            self.target_critic = place(self.new_critic(config), config.compute, self.device)
            self.target_critic.requires_grad_(False)
            follow(self.target_critic, self.critic, 1.0)
            self.modules["target_critic"] = self.target_critic
        recorded = graphs is not None
        self.actor_optimizer = make_adam(self.actor, learning.actor.learning_rate, recorded)
        self.critic_optimizer = make_adam(self.critic, learning.critic.learning_rate, recorded)
        self.scaler = grad_scaler(self.device, self.precision)
        if learning.kl_limit and self.scaler.is_enabled():
            raise ConfigError(
                "learning.kl_limit: does not work with float16, whose scaler decides which updates "
                "are made; use compute.precision=bfloat16 or float32, or learning.kl_limit=0"
            )
        # The same parameters, as they learn: on all cores, gradients averaged over all ranks.
        actor, critic = (with_batch_threads(n, self.device) for n in (self.actor, self.critic))
        evaluating = self.target_critic if self.has_target else self.critic
        self._evaluating = with_batch_threads(evaluating, self.device)
        self._actor = with_shared_gradients(actor, self.device)
        self._critic = with_shared_gradients(critic, self.device)

    # What an algorithm says of itself -----------------------------------------------------

    @abstractmethod
    def new_critic(self, config: Config) -> nn.Module:
        """Return a critic from [B, C_c, X, Y] to what the algorithm learns of them, [B, …]."""

    @abstractmethod
    def transitions(self, rollout: Rollout) -> Transitions:
        """Return all transitions of a rollout with what they teach, before any update."""

    @abstractmethod
    def credited(self, part: Transitions) -> Tensor | None:
        """Return what actions are credited with before the baseline is taken off, [B].

        The baseline is Σ_a π(a|o)·Q(s, a) of `action_values`. None credits an action with its Q.
        """

    def action_values(self, outputs: Tensor) -> Tensor:
        """Return Q(s, ·) [B, A] as the critic's outputs have it."""
        return outputs

    def critic_loss(self, outputs: Tensor, part: Transitions) -> Tensor:
        """Return the critic's loss; outputs with gradient."""
        return self._losses.critic(outputs, part)

    def returns(self, rollout: Rollout, values: Tensor, lambda_: float | None = None) -> Tensor:
        """Return TD(λ) returns [T, E, N] of values [T, E, N]; `learning.lambda` by default."""
        gamma = self.learning.gamma
        lambda_ = self.learning.lambda_ if lambda_ is None else lambda_
        return td_lambda_returns(rollout.rewards, values, gamma, lambda_, rollout.active)

    # Acting -------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return policy logits [E, N, A] float32 of observations [E, N, C_a, X, Y]."""
        with self._amp():
            logits: Tensor = self.actor(observation.flatten(0, 1))
        return logits.unflatten(0, observation.shape[:2])

    def follow_teacher(self, actor: nn.Module) -> None:
        """Pull the actor to a trained one, as `learning.teacher` says; see `Kickstart`.

        Raises:
            ConfigError: updates are recorded as CUDA graphs.
        """
        if self._graphs is not None:
            raise ConfigError(
                "learning.teacher.weight: changes from step to step, which CUDA graphs cannot; "
                "set compute.cuda_graphs=false"
            )
        self._kickstart = Kickstart(actor, self.learning.teacher)

    # Learning -----------------------------------------------------------------------------

    def _set_rates(self, factor: float) -> None:
        """Multiply the configured learning rates of actor and critic, for the next updates."""
        for optimizer, rate in (
            (self.actor_optimizer, self.learning.actor.learning_rate),
            (self.critic_optimizer, self.learning.critic.learning_rate),
        ):
            set_rate(optimizer, rate * factor)

    def update(
        self,
        rollout: Rollout,
        epsilon: float,
        generator: torch.Generator | None = None,
        steps: int = 1,
        rate: float = 1.0,
    ) -> dict[str, Tensor]:
        """Make training steps: targets once, then `data_passes` over all transitions.

        Each pass makes `batch_number` updates for each training step, so the transitions of K
        steps get as many updates together as they would one step after the other.

        Args:
            rollout: whole episodes; on several ranks this one's, as many as the others'.
            epsilon: floor of the policy that flew them.
            generator: shuffles and turns the transitions; on the networks' device.
            steps: training steps that the rollout is for.
            rate: what the configured learning rates are multiplied by.

        Returns:
            Scalars on the device (names of `training.logging.METRICS`): means over all batches,
            each with the transitions of all ranks; those that describe policy and critic are means
            over the last pass, of networks before each update.
        """
        self._set_rates(rate)
        if self._graphs is None:
            stats = self._pass_over(rollout, epsilon, generator, steps)
        else:

            def packed(number: Tensor) -> tuple[tuple[str, ...], Tensor]:
                found = self._pass_over(rollout, number, generator, steps)
                return tuple(found), torch.stack(list(found.values()))

            key = ("update", steps)
            names, values = self._graphs.run(key, rollout, packed, epsilon, generator)
            stats = dict(zip(names, values.clone().unbind(), strict=True))
        self.training_steps += steps
        self._update_target(steps)
        return stats

    def _pass_over(
        self,
        rollout: Rollout,
        epsilon: float | Tensor,
        generator: torch.Generator | None,
        steps: int,
    ) -> dict[str, Tensor]:
        """Make all updates on the device; returns what `update` returns."""
        epsilon = self._losses.floor(epsilon)
        flat = self.transitions(rollout)
        if self._kickstart is not None:
            with self._amp():
                flat = self._kickstart.label(flat, self.training_steps)
        batches = min(self.learning.batch_number * steps, len(flat))
        records: dict[str, list[Tensor]] = {}
        self._halted.zero_()
        passes = self.learning.data_passes
        for number in range(passes):
            for batch in self._batches(flat, batches, generator):
                record = self._learn(batch.balanced(), epsilon, describe=number == passes - 1)
                for key, value in record.items():
                    records.setdefault(key, []).append(value)
        sums = records.pop(POWER_SUMS, None)
        stats = {key: torch.stack(values).mean() for key, values in records.items()}
        stats["skipped_updates"] = torch.stack(records["skipped_updates"]).sum()
        stats["td_target"] = mean_of(flat.targets, flat.balanced().weights)
        if sums is not None:
            stats[POWER_SUMS] = torch.stack(sums)
        counted = None if flat.weights is None else flat.weights > 0
        stats = means_over_ranks(stats, {"td_target_std": flat.targets}, counted)
        if sums is not None:
            stats |= spreads_over_ranks(stats.pop(POWER_SUMS))
        return stats

    def _batches(
        self, flat: Transitions, number: int, generator: torch.Generator | None
    ) -> Iterator[Transitions]:
        """Yield all transitions in batches, shuffled, each flipped or turned where that is on."""
        order = torch.randperm(len(flat), generator=generator, device=self.device)
        for index in order.tensor_split(number):
            if self._symmetries is None:
                yield flat[index]
            else:
                which = self._symmetries.draw(len(index), generator)
                yield self._symmetries.take(flat, index, which)

    def fit_critic(self, rollout: Rollout, generator: torch.Generator | None = None) -> Tensor:
        """Let the critic alone learn from whole episodes, in one pass; its target copies it then.

        Args:
            rollout: whole episodes.
            generator: shuffles and turns the transitions; on the networks' device.

        Returns:
            The mean loss of the batches, on the device.
        """
        flat = self.transitions(rollout)
        losses = []
        number = min(self.learning.batch_number, len(flat))
        for batch in self._batches(flat, number, generator):
            _, loss, _, _ = self._learn_critic(batch.balanced().split(self.learning.micro_batch))
            self.scaler.update()
            losses.append(loss)
        if self.has_target:
            follow(self.target_critic, self.critic, 1.0)
        return torch.stack(losses).mean()

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Tensor:
        """Return the outputs of the target critic, or of the critic as it is: [T·E·N, …]."""
        chunk = target_chunk(self.device)
        inputs = zip(
            rollout.observations.flatten(0, 2).split(chunk),
            rollout.critic_maps.flatten(0, 2).split(chunk),
            strict=True,
        )
        with self._amp():
            return torch.cat([self._evaluating(torch.cat(parts, dim=1)) for parts in inputs])

    def _learn(
        self, batch: Transitions, epsilon: float | Tensor, describe: bool = True
    ) -> dict[str, Tensor]:
        """Update critic and actor on one batch; the advantage uses the critic before its update.

        The networks take the batch in parts of `micro_batch` transitions and add their
        gradients up, weighted so that the update is that of the whole batch.
        """
        parts = batch.split(self.learning.micro_batch)
        values, value_loss, value_norm, bad_value = self._learn_critic(parts)
        learned, policy_loss, policy_norm, bad_policy = self._learn_actor(parts, values, epsilon)
        self.scaler.update()
        record = {
            "critic_loss": value_loss,
            "actor_loss": policy_loss,
            "critic_gradient_norm": value_norm,
            "actor_gradient_norm": policy_norm,
            "skipped_updates": bad_value + bad_policy,
        }
        if self.learning.kl_limit:
            record["kl_halted"] = self._halted.clone()
        if describe:
            probabilities, advantages = map(_joined, zip(*learned, strict=True))
            record |= diagnostics(batch, _joined(values), probabilities, advantages)
        return record

    def _learn_critic(
        self, parts: list[Transitions]
    ) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
        """Update the critic; return values before, loss, gradient norm and skipped (0 or 1)."""
        values, losses = [], []
        self.critic_optimizer.zero_grad(set_to_none=True)
        for part in parts:
            with exchange_gradients(self._critic, now=part is parts[-1]):
                with self._amp():
                    found = self._critic(part.critic_inputs)
                losses.append(self._backward(self.critic_loss(found, part), part, parts))
            values.append(self.action_values(found.detach()))
        loss = mean_over_ranks(_total(losses))
        norm, bad = descend(
            loss,
            self.critic_optimizer,
            self.scaler,
            self.learning.critic.gradient_norm,
            decision=self._losses.decide,
        )
        return values, loss, norm, bad

    def _learn_actor(
        self, parts: list[Transitions], values: list[Tensor], epsilon: float | Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor, Tensor]:
        """Update the actor; return (π, advantage) before, loss, norm and skipped (0 or 1)."""
        learning, losses, learned = self.learning, [], []
        normalized: Sequence[Tensor] | None = None
        if learning.normalize_advantages and len(parts) > 1:  # needs all advantages beforehand
            with torch.no_grad():
                pairs = zip(parts, values, strict=True)
                advantages = torch.cat([self._judge(p, v, epsilon)[2] for p, v in pairs])
            weights = None
            if parts[0].weights is not None:
                weights = torch.cat([part.weights for part in parts if part.weights is not None])
            normalized = self._losses.normalized(advantages, weights).split([len(p) for p in parts])
        self.actor_optimizer.zero_grad(set_to_none=True)
        for index, (part, own) in enumerate(zip(parts, values, strict=True)):
            with exchange_gradients(self._actor, now=part is parts[-1]):
                policy, probabilities, advantage = self._judge(part, own, epsilon)
                scaled = advantage
                if learning.normalize_advantages:
                    scaled = (
                        self._losses.normalized(advantage, part.weights)
                        if normalized is None
                        else normalized[index]
                    )
                loss = self._losses.actor(
                    policy,
                    part,
                    scaled,
                    epsilon,
                    learning.entropy_coefficient,
                    learning.clip_ratio,
                )
                if self._kickstart is not None and part.teacher is not None:
                    distance = self._losses.teacher_kl(policy, part, epsilon)
                    loss = loss + self._kickstart.weight * distance
                losses.append(self._backward(loss, part, parts))
            learned.append((probabilities, advantage))
        loss = mean_over_ranks(_total(losses))
        if learning.kl_limit:
            self._watch_kl(parts, [probabilities for probabilities, _ in learned])
        norm, bad = descend(
            loss,
            self.actor_optimizer,
            self.scaler,
            learning.actor.gradient_norm,
            self._halted,
            self._losses.decide,
        )
        return learned, loss, norm, bad

    def _watch_kl(self, parts: list[Transitions], probabilities: list[Tensor]) -> None:
        """Halt the actor until the next training step if its policy is too far from the old one."""
        sums = []
        for part, now in zip(parts, probabilities, strict=True):
            divergence = kl_divergence(part.old_probabilities, now)
            sums.append((divergence if part.weights is None else divergence * part.weights).sum())
        mean = mean_over_ranks(torch.stack(sums).sum() / sum(len(part) for part in parts))
        self._halted.logical_or_(mean > self.learning.kl_limit)

    def _judge(
        self, part: Transitions, values: Tensor, epsilon: float | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Judge the actions of transitions, see `Losses.judge`."""
        with self._amp():
            logits = self._actor(part.observations)
        return self._losses.judge(logits, part, values, epsilon, self.credited(part))

    def _backward(self, loss: Tensor, part: Transitions, parts: list[Transitions]) -> Tensor:
        """Add the gradient of a part's loss times its share of the batch; return that loss."""
        if len(parts) > 1:
            loss = loss * (len(part) / sum(len(p) for p in parts))
        self.scaler.scale(loss).backward()
        return loss.detach()

    def _update_target(self, steps: int) -> None:
        if not self.has_target:
            return
        learning, every = self.learning, self.learning.copy_rate
        if learning.target_update_mode == "soft":
            tau = learning.tau if steps == 1 else 1 - (1 - learning.tau) ** steps
            follow(self.target_critic, self.critic, tau)
        elif self.training_steps // every > (self.training_steps - steps) // every:
            follow(self.target_critic, self.critic, 1.0)

    def _amp(self) -> Any:
        return autocast(self.device, self.precision)

    # Saving -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimisers, scaler and counter; loadable with `weights_only=True`."""
        return {
            **{name: module.state_dict() for name, module in self.modules.items()},
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "training_step": self.training_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; other keys of `state` are left alone."""
        for name, module in self.modules.items():
            module.load_state_dict(state[name])
        load_optimizer(self.actor_optimizer, state["actor_optimizer"])
        load_optimizer(self.critic_optimizer, state["critic_optimizer"])
        self._set_rates(1.0)
        if self._graphs is not None:
            self._graphs.forget()  # they know the optimisers' former tensors
        load_scaler(self.scaler, state["scaler"])
        self.training_steps = int(state["training_step"])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return parts one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _total(losses: list[Tensor]) -> Tensor:
    """Return the sum of the losses of parts."""
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _make_losses(compute: ComputeConfig, device: torch.device) -> Losses:
    """Return the fastest losses for a device."""
    if not uses_triton(compute, device):
        return Losses()
    # Triton takes a while to import, and many machines do without it.
    from marl_framework.algorithms.loss_operators import TritonLosses

    return TritonLosses(device)
