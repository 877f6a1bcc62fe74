"""Replay: a ring of whole missions on the device, and the base of algorithms that learn from it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic, target_chunk
from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.policy import Floor
from marl_framework.algorithms.ranks import number_of_ranks
from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config

GIB = 2**30


class Replay:
    """Ring of the newest missions; rollouts are written whole, the oldest missions go first.

    Missions are stored as they were flown, with inactive UAVs. Nothing is copied to the host, and
    samples can be recorded as CUDA graphs. `capacity` is the largest number of missions M; `like`
    is a rollout with their shapes, types and device.
    """

    def __init__(self, capacity: int, like: Rollout) -> None:
        fields = {n: f.new_empty(len(f), capacity, *f.shape[2:]) for n, f in like.tensors().items()}
        self._missions = Rollout(**fields)
        self._capacity, self._number = capacity, 0
        self._written = torch.zeros((), dtype=torch.int64, device=like.actions.device)

    def __len__(self) -> int:
        return min(self._number, self._capacity)

    def fits(self, rollout: Rollout) -> bool:
        """Return whether the missions of a rollout have the same fields and sizes, and all fit."""
        alike = _sizes(self._missions) == _sizes(rollout)
        return alike and rollout.rewards.shape[1] <= self._capacity

    def write(self, rollout: Rollout) -> None:
        """Add all missions of a rollout; of more than M missions, only the last M are stored."""
        flown = rollout.rewards.shape[1]
        rollout = rollout.missions(max(flown - self._capacity, 0), flown)
        missions, start = rollout.rewards.shape[1], self._number % self._capacity
        fitting = min(missions, self._capacity - start)  # the rest begins at the ring's start
        for name, stored in self._missions.tensors().items():
            field = getattr(rollout, name)
            stored[:, start : start + fitting] = field[:, :fitting]
            stored[:, : missions - fitting] = field[:, fitting:]
        self._number += missions
        self._written.fill_(self._number)  # recorded samples read the tensor

    def sample(self, missions: int, generator: torch.Generator | None) -> Rollout:
        """Return a rollout of missions drawn uniformly and with replacement, as copies."""
        written = self._written
        uniform = torch.rand(
            missions, generator=generator, dtype=torch.float64, device=written.device
        )
        age = (uniform * written.clamp(max=self._capacity)).long()
        slots = (written - 1 - age) % self._capacity  # by age: independent of the ring's rotation
        fields = self._missions.tensors().items()
        return Rollout(**{name: field.index_select(1, slots) for name, field in fields})

    def state_dict(self) -> dict[str, Any]:
        """Return the stored missions, each field [T, missions, …], and the number ever written."""
        held, fields = len(self), self._missions.tensors().items()
        full = held == self._capacity  # a clone of a part keeps the rest out of the file
        stored = {name: field if full else field[:, :held].clone() for name, field in fields}
        return {"missions": stored, "written": self._number}


def stored_missions(state: Mapping[str, Any]) -> Rollout:
    """Return the missions of `Replay.state_dict` as a rollout, the oldest first."""
    missions = Rollout(**state["missions"])
    held = missions.rewards.shape[1]
    order = (torch.arange(held) + int(state["written"])) % max(held, 1)
    fields = missions.tensors().items()
    return Rollout(**{name: f.index_select(1, order.to(f.device)) for name, f in fields})


def _sizes(rollout: Rollout) -> dict[str, tuple[int, ...]]:
    fields = rollout.tensors().items()
    return {name: (len(field), *field.shape[2:]) for name, field in fields}


class Replayed(ActorCritic):
    """Base class of algorithms that learn from missions drawn from a `Replay`.

    Each pass over the data draws as many stored missions as the training step flies, and computes
    their targets with the current networks. A subclass defines `new_critic`, `targets`, the losses
    and, if joint moves stay together, `joint`.

    Raises:
        ConfigError: `logging.save_replay` is combined with several ranks, or missions of different
            areas have different budgets.
    """

    joint = False
    """Whether all UAVs' transitions of a move are in the same batch."""

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
        self._replay: Replay | None = None
        self._least = 1  # missions that it holds whatever `replay_size`: those of a rollout

    @abstractmethod
    def targets(self, rollout: Rollout, epsilon: Floor) -> Tensor:
        """Compute targets [T, E, N] of whole missions under the current policy with floor ε."""

    def transitions(self, rollout: Rollout, epsilon: Floor = 0.0) -> Transitions:
        """Return all transitions of a rollout with targets for the policy with floor ε."""
        flat = Transitions.of(rollout, self.targets(rollout, epsilon))
        flat.team = rollout.actions.shape[2] if self.joint else 1
        return flat

    def credited(self, part: Transitions) -> Tensor | None:
        """Return None: actions are credited with Q(s, a)."""
        return None

    @torch.no_grad()
    def logits(self, actor: nn.Module, rollout: Rollout) -> Tensor:
        """Return an actor's logits [T, E, N, A] for a rollout."""
        chunks = rollout.observations.flatten(0, 2).split(target_chunk(self.device))
        with self._amp():
            logits = torch.cat([actor(chunk) for chunk in chunks])
        return logits.view(rollout.masks.shape)

    def receive(self, rollout: Rollout) -> None:
        """Store the rollout; training steps then learn from stored missions."""
        if self._replay is None or not self._replay.fits(rollout):
            self._least = rollout.rewards.shape[1]
            self._replay = self._new_replay(rollout)
        self._replay.write(rollout)

    def _new_replay(self, like: Rollout) -> Replay:
        moves, _, agents = like.actions.shape
        missions = self.learning.replay_size // (number_of_ranks() * moves * agents)
        return Replay(max(missions, self._least), like)

    def passes(
        self, rollout: Rollout, epsilon: Floor, generator: torch.Generator | None
    ) -> Iterator[Transitions]:
        """Yield for each pass the transitions of as many stored missions, with new targets."""
        assert self._replay is not None
        for _ in range(self.learning.data_passes):
            drawn = self._replay.sample(rollout.rewards.shape[1], generator)
            yield self.with_teacher(self.transitions(drawn, epsilon))

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
        """Return the state of `ActorCritic` and, if saved, the replay's."""
        state = super().state_dict()
        if self._saves and self._replay is not None:
            state["replay"] = {**self._replay.state_dict(), "least": self._least}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; ignore other keys of `state`."""
        super().load_state_dict(state)
        self._replay = None
        if self._saves and "replay" in state:
            stored = stored_missions(state["replay"]).tensors()
            for name in ("observations", "critic_maps"):
                stored[name] = stored[name].to(self.precision)
            rollout = Rollout(**{name: field.to(self.device) for name, field in stored.items()})
            self._least = int(state["replay"].get("least", 1))
            self._replay = self._new_replay(rollout)
            self._replay.write(rollout)
