"""A pytest plugin: interpreted Triton programs run in random order, and none may race.

A launch races if two programs store to one address, or if one loads what another stores.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from triton.runtime import interpreter

Builder = type(interpreter.interpreter_builder)
Accesses = list[tuple[int, np.ndarray]]
"""Programs and the addresses that they touch."""


class RaceError(AssertionError):
    """Two programs of a launch depend on their order."""


@pytest.fixture(autouse=True)
def _no_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffle the programs of all launches, and check their stores and loads."""
    order = random.Random(1)
    programs: list[tuple[int, int, int]] = []  # to run, last first
    stores: Accesses = []
    loads: Accesses = []

    def begin(builder: Any, *grid: int) -> None:
        builder.grid_dim = grid
        programs[:] = np.ndindex(*grid)
        order.shuffle(programs)
        stores.clear()
        loads.clear()

    def next_program(builder: Any, *_: int) -> None:
        builder.grid_idx = programs.pop()

    def store(builder: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        stores.append((len(programs), addresses(pointers, mask)))
        return real_store(builder, pointers, value, mask, *others)

    def load(builder: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        loads.append((len(programs), addresses(pointers, mask)))
        return real_load(builder, pointers, mask, *others)

    def launch(executor: Any, *arguments: Any, **named: Any) -> None:
        real_launch(executor, *arguments, **named)
        if text := race(stores, loads):
            raise RaceError(f"{executor.fn.__name__}: {text}")

    real_store, real_load = Builder.create_masked_store, Builder.create_masked_load
    real_launch = interpreter.GridExecutor.__call__
    monkeypatch.setattr(Builder, "set_grid_dim", begin)
    monkeypatch.setattr(Builder, "set_grid_idx", next_program)
    monkeypatch.setattr(Builder, "create_masked_store", store)
    monkeypatch.setattr(Builder, "create_masked_load", load)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)


def addresses(pointers: Any, mask: Any) -> np.ndarray:
    """Return the addresses that a load or store touches."""
    numbers = np.asarray(pointers.data)
    return numbers[np.broadcast_to(np.asarray(mask.data, dtype=bool), numbers.shape)].ravel()


def race(stores: Accesses, loads: Accesses) -> str:
    """Return a description of a race; empty if there is none."""
    if not stores:
        return ""
    address, first, program = stored_by(stores)
    both = (address[1:] == address[:-1]) & (program[1:] != program[:-1])
    if both.any():
        return f"{both.sum()} addresses are stored by two programs"
    address, program = address[first], program[first]
    for reader, touched in loads:
        at = np.searchsorted(address, touched).clip(max=len(address) - 1)
        if ((address[at] == touched) & (program[at] != reader)).any():
            return "a program loads what another stores"
    return ""


def stored_by(stores: Accesses) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sorted addresses, the index of each one's first entry, and their programs."""
    address = np.concatenate([touched for _, touched in stores])
    program = np.repeat([number for number, _ in stores], [len(touched) for _, touched in stores])
    order = np.lexsort((program, address))
    address, program = address[order], program[order]
    return address, np.unique(address, return_index=True)[1], program
