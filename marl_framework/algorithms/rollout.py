"""Interfaces of tasks and algorithms, and the rollouts that connect them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.policy import Floor, policy_probabilities, sample_actions
from marl_framework.config.model import NetworkSizes

Policy = Callable[[Tensor], Tensor]
"""Function from observations [E, N, C_a, X, Y] to logits [E, N, A]."""


class TeamTask(Protocol):
    """Environment for an algorithm: E episodes with T steps and N agents, on one device.

    Optional: `draw_actions` samples all actions in one call and replaces `choose_in_order`. It
    takes logits and uniform draws [E, N, A] and the policy's floor [] float64. It writes actions
    [E, N], masks and probabilities [E, N, A] into its other arguments.

    Optional: if `has_inactive` is True, `active` [E, N] bool marks the agents that act now. Actions
    of inactive agents are ignored; an agent's episode ends with its last action.
    """

    num_envs: int
    n_agents: int
    episode_length: int
    sizes: NetworkSizes
    device: torch.device
    generator: torch.Generator

    def reset(self) -> None:
        """Start E new episodes."""

    def observe(self, out: Tensor) -> Tensor:
        """Write observations into `out`, [E, N, C_a, X, Y]; return it."""

    def choose_in_order(self, choose: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Call `choose(i, mask[E, A])` for agents 0 to N - 1; return actions [E, N] and masks."""

    def critic_maps(self, actions: Tensor, out: Tensor) -> Tensor:
        """Write the channels that only the critic sees, for `actions` [E, N] of all agents.

        Return `out`, [E, N, C_c - C_a, X, Y].
        """

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Make a step; return the shared reward [E] and the step's metrics [E, M]."""


@dataclass
class Rollout:
    """E whole episodes, time axis first; `RolloutCollector` writes them."""

    observations: Tensor
    """Observations of all agents, [T, E, N, C_a, X, Y]."""
    critic_maps: Tensor
    """Channels that only the critic sees, [T, E, N, C_c - C_a, X, Y]."""
    actions: Tensor
    """Actions taken, [T, E, N] int64."""
    masks: Tensor
    """Allowed actions, [T, E, N, A] bool."""
    probabilities: Tensor
    """π from which the actions were sampled, [T, E, N, A]."""
    rewards: Tensor
    """Shared reward, [T, E]."""
    metrics: Tensor
    """Metrics of each step, [T, E, M]."""
    active: Tensor | None = None
    """Active agents, [T, E, N] bool; None = all agents in all steps."""

    def missions(self, first: int, end: int) -> Rollout:
        """Return missions `first` to `end` (exclusive) as views."""
        return Rollout(**{name: field[:, first:end] for name, field in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: field for name, field in vars(self).items() if field is not None}


class Algorithm(Protocol):
    """Multi-agent algorithm: acts for a team and learns from its rollouts.

    Constructed as `MyAlgorithm(config, sizes, device, symmetries, graphs)`, see `COMAWrapper`.
    `act` and `update` must not copy tensors to the host. Optional: `notes()` returns lines that are
    printed before the training.
    """

    device: torch.device
    precision: torch.dtype
    """Precision of the networks' forward passes, and of the maps in rollouts."""
    modules: Mapping[str, nn.Module]
    """All networks by name; `actor` maps [B, C_a, X, Y] to policy logits [B, A]."""
    training_steps: int
    """Number of training steps so far."""

    def act(self, observation: Tensor) -> Tensor:
        """Return policy logits [E, N, A] float32 for observations [E, N, C_a, X, Y]."""

    def update(
        self,
        rollout: Rollout,
        epsilon: float,
        generator: torch.Generator | None = None,
        steps: int = 1,
        rate: float = 1.0,
    ) -> dict[str, Tensor]:
        """Perform training steps on whole episodes.

        Args:
            rollout: whole episodes, equally many on every rank.
            epsilon: floor of the policy in the rollout.
            generator: source of all random numbers, on the device.
            steps: number of training steps with this rollout; added to `training_steps`.
            rate: factor of the configured learning rates.

        Returns:
            Scalars to log, on the device. Names outside `training.logging.METRICS` are logged under
            `algorithm/`. Optional `skipped_updates`: number of updates that were not finite.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the complete training state; each module is stored under its name."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; ignore other keys of `state`."""


class RolloutCollector:
    """Collector of rollouts: flies E episodes with a policy.

    Args:
        task: the environment.
        num_metrics: number of metrics M of `TeamTask.step`.
        graphs: runs whole episodes as CUDA graphs; the task must not reallocate its tensors.
        precision: precision of all maps; with the networks' precision no cast is needed.
    """

    def __init__(
        self,
        task: TeamTask,
        num_metrics: int = 0,
        graphs: Graphs | None = None,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.task = task
        self._num_metrics, self._precision, self._graphs = num_metrics, precision, graphs
        self._reused: dict[int, Rollout] = {}

    def collect(self, policy: Policy, epsilon: float, rounds: int = 1) -> Rollout:
        """Fly rounds·E whole episodes with floor ε, E at a time; return the rollout.

        With CUDA graphs, the next call with the same `rounds` overwrites the rollout.
        """
        missions = rounds * self.task.num_envs
        if self._graphs is None:
            return self._fly_all(policy, self._allocate(missions), epsilon)
        if rounds not in self._reused:
            self._reused[rounds] = self._allocate(missions)
        rollout, key = self._reused[rounds], ("rollout", rounds, policy, id(self))
        fly = partial(self._fly_all, policy, rollout)
        return self._graphs.run(key, rollout, fly, epsilon, self.task.generator)

    def _fly_all(self, policy: Policy, rollout: Rollout, epsilon: Floor) -> Rollout:
        size = self.task.num_envs
        # The outer context makes autocast cache its casts of weights for the whole rollout.
        with torch.autocast(self.task.device.type, enabled=False):
            for first in range(0, rollout.rewards.shape[1], size):
                self._fly(policy, epsilon, rollout.missions(first, first + size))
        return rollout

    def _fly(self, policy: Policy, epsilon: Floor, rollout: Rollout) -> None:
        task = self.task
        draw_all = getattr(task, "draw_actions", None)
        draw = draw_all or partial(draw_one_by_one, task)
        if draw_all is not None and not isinstance(epsilon, Tensor):
            epsilon = torch.full((), epsilon, dtype=torch.float64, device=task.device)
        task.reset()
        for t in range(task.episode_length):
            logits = policy(task.observe(rollout.observations[t]))
            uniform = torch.rand(logits.shape, generator=task.generator, device=task.device)
            actions, masks = rollout.actions[t], rollout.masks[t]
            draw(logits, uniform, epsilon, actions, masks, rollout.probabilities[t])
            if rollout.active is not None:
                rollout.active[t] = task.active  # type: ignore[attr-defined]
            task.critic_maps(actions, rollout.critic_maps[t])
            rollout.rewards[t], rollout.metrics[t] = task.step(actions)

    def _allocate(self, missions: int) -> Rollout:
        task, sizes = self.task, self.task.sizes
        lead = (task.episode_length, missions)
        team = (*lead, task.n_agents)
        empty = partial(torch.empty, device=task.device)
        maps = partial(empty, dtype=self._precision)
        masked = getattr(task, "has_inactive", False)
        return Rollout(
            observations=maps(*team, sizes.actor_channels, *sizes.shape),
            critic_maps=maps(*team, sizes.critic_channels - sizes.actor_channels, *sizes.shape),
            actions=empty(team, dtype=torch.int64),
            masks=empty(*team, sizes.num_actions, dtype=torch.bool),
            probabilities=empty(*team, sizes.num_actions),
            rewards=empty(lead),
            metrics=empty(*lead, self._num_metrics),
            active=empty(team, dtype=torch.bool) if masked else None,
        )


def draw_one_by_one(
    task: TeamTask,
    logits: Tensor,
    uniform: Tensor,
    epsilon: Floor,
    actions: Tensor,
    masks: Tensor,
    probabilities: Tensor,
) -> None:
    """Sample the agents' actions in order; see `TeamTask.draw_actions`."""

    def choose(i: int, mask: Tensor) -> Tensor:
        probabilities[:, i] = policy_probabilities(logits[:, i], mask, epsilon)
        return sample_actions(probabilities[:, i], uniform[:, i], mask)

    chosen, allowed = task.choose_in_order(choose)
    actions.copy_(chosen)
    masks.copy_(allowed)
