"""Collects whole episodes of a team task into one preallocated batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from marl_framework.algorithms.graphs import Graphs
from marl_framework.algorithms.policy import policy_probabilities, sample_actions
from marl_framework.config.model import NetworkSizes


class TeamTask(Protocol):
    """What algorithms need of an environment: E episodes of T steps for N agents, on one device.

    A task may have a `draw_actions`, which does at once what rollouts else do with
    `choose_in_order`. Called with logits [E, N, A], uniform draws [E, N, A] and the policy's floor
    [] float64, it writes actions [E, N], masks and probabilities [E, N, A], its other arguments.

    A task whose `has_inactive` is True has an `active`, [E, N] bool: the agents that act now. What
    the others are said to do is not learned from; an agent's episode is over where it acts no more.
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
        """Ask `choose(i, mask[E, A])` of agents 0 … N - 1; return actions [E, N] and masks."""

    def critic_maps(self, actions: Tensor, out: Tensor) -> Tensor:
        """Write what only the critic sees once all have chosen into `out`; return it.

        It is [E, N, C_c - C_a, X, Y].
        """

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Move on; return the shared reward [E] and metrics of the step [E, M]."""


@dataclass
class Rollout:
    """E whole episodes; the time axis leads. Written once, by `RolloutCollector`."""

    observations: Tensor
    """What each agent sees, [T, E, N, C_a, X, Y]."""
    critic_maps: Tensor
    """What only the critic sees beside it, [T, E, N, C_c - C_a, X, Y]."""
    actions: Tensor
    """[T, E, N] int64."""
    masks: Tensor
    """Allowed actions when acting, [T, E, N, A] bool."""
    probabilities: Tensor
    """π of the acting policy, [T, E, N, A]."""
    rewards: Tensor
    """Shared reward, [T, E]."""
    metrics: Tensor
    """What the task reports of each step, [T, E, M]."""
    active: Tensor | None = None
    """Agents that act, [T, E, N] bool; None where all do all the time."""

    def missions(self, first: int, end: int) -> Rollout:
        """Return the missions `first` up to `end` as views."""
        return Rollout(**{name: field[:, first:end] for name, field in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: field for name, field in vars(self).items() if field is not None}


class RolloutCollector:
    """Flies E episodes with the current policy.

    Args:
        task: the environment.
        num_metrics: M of `TeamTask.step`.
        graphs: run whole episodes as CUDA graphs; the task must keep its tensors in place.
        precision: of all maps; that of the networks, which then cast them no more.
    """

    def __init__(
        self,
        task: TeamTask,
        num_metrics: int = 0,
        graphs: Graphs | None = None,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.task = task
        self._num_metrics = num_metrics
        self._precision = precision
        self._graphs = graphs
        self._reused: dict[int, Rollout] = {}

    def collect(
        self, policy: Callable[[Tensor], Tensor], epsilon: float, rounds: int = 1
    ) -> Rollout:
        """Return rounds·E whole episodes, E at a time.

        With graphs the next call with as many rounds writes over them.

        Args:
            policy: maps observations [E, N, C_a, X, Y] to logits [E, N, A].
            epsilon: floor of the acting policy.
            rounds: how often E missions are flown.
        """
        missions = rounds * self.task.num_envs
        if self._graphs is None:
            return self._fly_all(policy, epsilon, self._empty(missions))
        if rounds not in self._reused:
            self._reused[rounds] = self._empty(missions)
        rollout = self._reused[rounds]
        return self._graphs.run(
            ("rollout", rounds, policy),
            rollout,
            lambda number: self._fly_all(policy, number, rollout),
            epsilon,
            self.task.generator,
        )

    def _fly_all(
        self, policy: Callable[[Tensor], Tensor], epsilon: float | Tensor, rollout: Rollout
    ) -> Rollout:
        size = self.task.num_envs
        # Autocast forgets the weights it has cast when its outermost context ends; in this one
        # they are cast once for the whole rollout.
        with torch.autocast(self.task.device.type, enabled=False):
            for first in range(0, rollout.rewards.shape[1], size):
                self._fly(policy, epsilon, rollout.missions(first, first + size))
        return rollout

    def _fly(
        self, policy: Callable[[Tensor], Tensor], epsilon: float | Tensor, rollout: Rollout
    ) -> None:
        """Write one episode of E missions into a rollout of as many."""
        task = self.task
        at_once = getattr(task, "draw_actions", None)
        draw = at_once or partial(draw_one_by_one, task)
        if at_once is not None and not isinstance(epsilon, Tensor):
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

    def _empty(self, missions: int) -> Rollout:
        task, sizes = self.task, self.task.sizes
        lead = (task.episode_length, missions)
        team = (*lead, task.n_agents)
        device, own = task.device, sizes.critic_channels - sizes.actor_channels
        masked = getattr(task, "has_inactive", False)

        def maps(channels: int) -> Tensor:
            return torch.empty(*team, channels, *sizes.shape, dtype=self._precision, device=device)

        return Rollout(
            observations=maps(sizes.actor_channels),
            critic_maps=maps(own),
            actions=torch.empty(team, dtype=torch.int64, device=device),
            masks=torch.empty(*team, sizes.num_actions, dtype=torch.bool, device=device),
            probabilities=torch.empty(*team, sizes.num_actions, device=device),
            rewards=torch.empty(lead, device=device),
            metrics=torch.empty(*lead, self._num_metrics, device=device),
            active=torch.empty(team, dtype=torch.bool, device=device) if masked else None,
        )


def draw_one_by_one(
    task: TeamTask,
    logits: Tensor,
    uniform: Tensor,
    epsilon: float | Tensor,
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
