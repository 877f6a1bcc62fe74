"""Replay: a ring of whole missions on the device, from which off-policy algorithms learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from marl_framework.algorithms.rollout import Rollout


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
