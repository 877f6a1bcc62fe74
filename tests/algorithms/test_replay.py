"""The ring of missions against a Python list."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.algorithms.replay import Replay, stored_missions
from marl_framework.algorithms.rollout import Rollout
from tests.algorithms.making import concatenate, rollout_on, shuffler

writes = st.lists(st.integers(1, 7), max_size=8)
capacities = st.integers(1, 6)


def numbered(first: int, missions: int) -> Rollout:
    """Missions with numbers from `first` on; the number of UAVs that fly differs."""
    rollout, number = rollout_on(num_envs=missions, seed=first), torch.arange(missions) + first
    rewards = rollout.rewards + number
    active = (rollout.actions + number.view(1, -1, 1)) % 3 > 0
    return replace(rollout, rewards=rewards, active=active)


def filled(capacity: int, sizes: list[int]) -> tuple[Replay, list[Rollout]]:
    """A ring after writes of these sizes, and the list of missions that it must hold."""
    ring, flown = Replay(capacity, numbered(0, 1)), list[Rollout]()
    for size in sizes:
        rollout = numbered(len(flown), size)
        ring.write(rollout)
        flown += [rollout.missions(e, e + 1) for e in range(size)]
    return ring, flown[-capacity:]


def same(one: Rollout, other: Rollout) -> bool:
    a, b = one.tensors(), other.tensors()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@settings(max_examples=40)
@given(capacities, writes)
def test_the_newest_missions_are_stored_in_order(capacity: int, sizes: list[int]) -> None:
    ring, expected = filled(capacity, sizes)
    assert len(ring) == len(expected)
    if expected:
        assert same(stored_missions(ring.state_dict()), concatenate(expected))


@settings(max_examples=25)
@given(capacities, writes.filter(bool))
def test_samples_are_whole_stored_missions_and_miss_none(capacity: int, sizes: list[int]) -> None:
    ring, expected = filled(capacity, sizes)
    drawn = ring.sample(40 * len(expected), shuffler())
    counts = [0] * len(expected)
    for e in range(drawn.rewards.shape[1]):
        mission = drawn.missions(e, e + 1)
        counts[[same(mission, stored) for stored in expected].index(True)] += 1
    assert min(counts) > 10  # of 40 on average


@settings(max_examples=25)
@given(capacities, writes.filter(bool), st.integers(1, 9))
def test_a_loaded_ring_draws_the_same_missions(capacity: int, sizes: list[int], more: int) -> None:
    ring, _ = filled(capacity, sizes)
    loaded = Replay(capacity, numbered(0, 1))
    loaded.write(stored_missions(ring.state_dict()))
    for each in (ring, loaded):
        each.write(numbered(100, more))
    assert same(ring.sample(9, shuffler()), loaded.sample(9, shuffler()))


def test_samples_are_copies_and_a_state_holds_only_what_is_stored() -> None:
    ring, _ = filled(1000, [3])
    before = ring.sample(5, shuffler())
    ring.sample(5, shuffler()).rewards.zero_()
    assert same(ring.sample(5, shuffler()), before)
    stored = ring.state_dict()["missions"]["observations"]
    assert stored.untyped_storage().nbytes() == stored.numel() * stored.itemsize


@pytest.mark.parametrize("other", ["fewer moves", "no mask", "more missions"])
def test_other_missions_do_not_fit(other: str) -> None:
    rollout = numbered(0, 2)
    ring = Replay(3, rollout)
    assert ring.fits(numbered(0, 3))
    if other == "more missions":
        assert not ring.fits(numbered(0, 4))
    elif other == "no mask":
        assert not ring.fits(replace(rollout, active=None))
    else:
        assert not ring.fits(Rollout(**{k: v[:1] for k, v in rollout.tensors().items()}))


def test_nothing_is_read_back_to_the_host() -> None:
    ring = Replay(3, rollout_on("meta"))
    ring.write(rollout_on("meta", num_envs=5))
    assert ring.sample(4, None).observations.shape == (2, 4, 2, 2, 3, 3)
