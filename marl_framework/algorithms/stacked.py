"""Several learners that differ in seed and learning rates alone, and act and learn as one.

Small networks leave a GPU idle: most of a training step is waiting for kernels to start. Here a
kernel serves all learners.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from marl_framework.algorithms.actor_critic import ActorCritic, target_chunk
from marl_framework.algorithms.batch import Transitions, balance, deviation, diagnostics
from marl_framework.algorithms.losses import mean_of
from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.stacked_networks import StackedNetworks
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.device import resolve_precision

Fields = dict[str, Tensor]
"""Transitions of all learners by the names of `Transitions`, [L, B, …]."""


def stacks(config: Config, device: torch.device) -> tuple[bool, str]:
    """Return whether learners are stacked, and what prevents it where only that does.

    Raises:
        ConfigError: they must be, and cannot.
    """
    wanted = config.compute.stack_networks
    if wanted == "never" or (wanted == "auto" and device.type != "cuda"):
        return False, ""
    networks, learning = config.networks, config.learning
    precision = resolve_precision(config.compute.precision, device)
    reasons = {
        f"experiment.algorithm: {config.experiment.algorithm}": config.experiment.algorithm
        not in ("coma", "central_v", "iac"),
        "networks.actor.type: must be cnn": networks.actor.type != "cnn",
        "networks.critic.type: must be cnn": networks.critic.type != "cnn",
        "learning.kl_limit": learning.kl_limit > 0,
        "learning.micro_batch": learning.micro_batch > 0,
        "learning.teacher": learning.teacher.weight > 0,
        "compute.gradient_checkpointing": config.compute.gradient_checkpointing,
        "compute.precision: float16": precision == torch.float16,
    }
    reason = next((key for key, prevents in reasons.items() if prevents), None)
    if reason is None:
        return True, ""
    if wanted == "always":
        raise ConfigError(f"compute.stack_networks: always does not work with {reason}; use auto")
    return False, reason


class StackedLearners:
    """L learners whose missions are flown together, [L·E] of them, those of a learner in a row.

    What they know is theirs again after each `update`: networks, optimisers and counters are what
    each would have alone, but for the rounding of sums in another order. Nobody else may change it
    in between.

    Args:
        learners: alike in all but weights and learning rates; see `stacks`.
    """

    def __init__(self, learners: Sequence[ActorCritic]) -> None:
        self._learners = learners
        self._number = len(learners)
        like = learners[0]
        self._learning = like.learning
        self._stretches = 1  # of the transitions of each learner: a round at one time
        self._actor = self._stack("actor")
        self._critic = self._stack("critic")
        self._target = self._critic
        if like.has_target:
            targets = [learner.target_critic for learner in learners]
            self._target = StackedNetworks(targets, like.precision)
        self._like = copy.copy(like)  # whose rules are those of all, and whose networks all are
        self._like.evaluate = self._evaluate  # type: ignore[method-assign]

    def _stack(self, name: str) -> StackedNetworks:
        """Return the actors or critics of all learners."""
        return StackedNetworks(
            [learner.modules[name] for learner in self._learners],
            self._learners[0].precision,
            [getattr(learner, f"{name}_optimizer") for learner in self._learners],
        )

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return policy logits [L·E, N, A] float32 of observations [L·E, N, C_a, X, Y]."""
        missions, agents = observation.shape[:2]
        logits = self._actor(observation.view(self._number, -1, *observation.shape[2:]))
        return logits.view(missions, agents, -1)

    def update(
        self,
        rollout: Rollout,
        epsilon: float,
        generators: Sequence[torch.Generator],
        steps: int,
        rate: float,
        rounds: int = 1,
    ) -> list[dict[str, Tensor]]:
        """Make training steps of all learners, see `ActorCritic.update`.

        Args:
            rollout: of all, [T, R·L·E, …] for R rounds of missions.
            epsilon: floor of the policies that flew them.
            generators: of each learner.
            steps: training steps that the rollout is for.
            rate: what the configured learning rates are multiplied by.
            rounds: R.

        Returns:
            Scalars of each learner.
        """
        learning = self._learning
        self._stretches = len(rollout.rewards) * rounds
        for learner in self._learners:
            learner.set_rates(rate)
        floor = self._like.losses.floor(epsilon)
        flat = self._like.transitions(rollout)
        batches = min(learning.batch_number * steps, len(flat) // self._number)
        records: dict[str, list[Tensor]] = {}
        for number in range(learning.data_passes):
            last = number == learning.data_passes - 1
            for fields in self._batches(flat, batches, generators):
                for key, value in self._learn(fields, floor, describe=last).items():
                    records.setdefault(key, []).append(value)
        found = {key: torch.stack(values).mean(0) for key, values in records.items()}
        found["skipped_updates"] = torch.stack(records["skipped_updates"]).sum(0)
        counting = {"targets": flat.targets}
        if flat.weights is not None:
            counting["weights"] = flat.weights
        found |= vmap(_describe_targets)(
            {name: self._by_learner(field) for name, field in counting.items()}
        )
        for networks in (self._actor, self._critic):
            networks.store()
        for learner in self._learners:
            learner.count(steps)
        if self._target is not self._critic:
            self._target.load()
        return [{key: value[i] for key, value in found.items()} for i in range(self._number)]

    # Whose transitions lie where ----------------------------------------------------------

    def _by_learner(self, flat: Tensor) -> Tensor:
        """Return transitions [T·R·L·E·N, …] as [L, T·R·E·N, …]."""
        found = flat.unflatten(0, (self._stretches, self._number, -1))
        return found.transpose(0, 1).flatten(1, 2)

    def _batches(
        self, flat: Transitions, number: int, generators: Sequence[torch.Generator]
    ) -> Iterator[Fields]:
        """Yield batches as each learner would alone; see `ActorCritic`."""
        length, device = len(flat) // self._number, flat.actions.device
        stretch = length // self._stretches
        order = torch.stack(
            [torch.randperm(length, generator=each, device=device) for each in generators]
        )
        learner = torch.arange(self._number, device=device).unsqueeze(1)
        places = (order // stretch * self._number + learner) * stretch + order % stretch
        for part in places.tensor_split(number, dim=1):
            index, size = part.flatten(), part.shape[1]
            if self._like.symmetries is None:
                batch = flat[index]
            else:
                which = [self._like.symmetries.draw(size, each) for each in generators]
                batch = self._like.symmetries.take(flat, index, torch.cat(which))
            yield {
                name: field.unflatten(0, (self._number, size))
                for name, field in {**batch.tensors(), "maps": batch.critic_inputs}.items()
            }

    @torch.no_grad()
    def _evaluate(self, rollout: Rollout) -> Tensor:
        """Return what `ActorCritic.evaluate` does, [T·R·L·E·N, …], each by its own critic."""
        seen, own = (
            maps.flatten(0, 2).unflatten(0, (self._stretches, self._number, -1))
            for maps in (rollout.observations, rollout.critic_maps)
        )
        chunk = max(target_chunk(seen.device) // (seen.shape[1] * seen.shape[2]), 1)
        outputs = []
        for parts in zip(seen.split(chunk), own.split(chunk), strict=True):
            maps = torch.cat(parts, dim=3).transpose(0, 1)
            found = self._target(maps.flatten(1, 2))
            outputs.append(found.unflatten(1, maps.shape[1:3]).transpose(0, 1))
        return torch.cat(outputs).flatten(0, 2)

    # Learning -----------------------------------------------------------------------------

    def _learn(self, fields: Fields, epsilon: float | Tensor, describe: bool) -> dict[str, Tensor]:
        """Update critics and actors on a batch of each; see `ActorCritic`."""
        like, learning, losses = self._like, self._learning, self._like.losses

        def judge_values(outputs: Tensor, fields: Fields) -> tuple[Tensor, Tensor]:
            part = Transitions(**fields).balanced()
            return like.critic_loss(outputs, part), like.action_values(outputs.detach())

        def judge_policy(
            logits: Tensor, values: Tensor, fields: Fields
        ) -> tuple[Tensor, dict[str, Tensor]]:
            part = Transitions(**fields).balanced()
            policy, probabilities, advantages = like.judge(logits, part, values, epsilon)
            scaled = advantages
            if learning.normalize_advantages:
                scaled = losses.normalized(advantages, part.weights)
            loss = like.actor_loss(policy, part, scaled, epsilon)
            found = diagnostics(part, values, probabilities, advantages) if describe else {}
            return loss, found

        found: dict[str, Tensor] = {}
        outputs = self._critic(fields["maps"])
        value_losses, values = vmap(judge_values)(outputs, fields)
        norms, bad_values = self._critic.descend(
            value_losses, learning.critic.gradient_norm, losses.decide
        )
        found |= {"critic_loss": value_losses.detach(), "critic_gradient_norm": norms}
        policy_losses, described = vmap(judge_policy)(
            self._actor(fields["observations"]), values, fields
        )
        norms, bad = self._actor.descend(policy_losses, learning.actor.gradient_norm, losses.decide)
        found |= {"actor_loss": policy_losses.detach(), "actor_gradient_norm": norms}
        return found | {"skipped_updates": bad_values + bad} | described


def _describe_targets(fields: Fields) -> Fields:
    """Return what is logged of the targets of one learner."""
    targets, weights = fields["targets"], fields.get("weights")
    counted = None if weights is None else weights > 0
    return {
        "td_target": mean_of(targets, None if weights is None else balance(weights)),
        "td_target_std": deviation(targets, counted),
    }
