"""Missions flown to their middle, fused and observed one UAV after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.helpers import mid_mission, one_at_a_time
from benchmarks.reference import plain_mission


def test_missions_are_the_same_every_time(recorded):
    again = mid_mission.fly(recorded.config, 3)
    for (name, one), (_, other) in zip(
        again.state.tensors(), recorded.flown.state.tensors(), strict=True
    ):
        assert torch.equal(one, other), name
    assert len(again.state.positions[..., 2].unique()) > 1
    assert all(recorded.plain.senders(k) == [1 - k % 2] for k in range(6))


@pytest.mark.parametrize("prior", [0.5, 0.3])
def test_fusing_over_the_whole_map_equals_fusing_in_the_window(prior):
    rng = np.random.default_rng(0)
    belief = rng.random((30, 20)).astype(np.float32)
    belief[0, :2] = 1e-6, 1  # beyond the clamp, outside of the footprint
    seen = plain_mission.Footprint(5, -2, 8, 8, 5, 13, 0, 6)
    reading = np.where(rng.random((8, 6)) < 0.5, 0.9, 0.1).astype(np.float32)
    whole, window = belief.copy(), belief.copy()
    one_at_a_time.fuse_whole_map(whole, seen, reading, prior)
    plain_mission.fuse(window, seen, reading, prior)
    np.testing.assert_array_equal(whole, window)
    assert (whole != belief).sum() == 48


def test_a_pool_sees_what_one_process_sees(recorded):
    plain = recorded.plain
    with one_at_a_time.process_pool({plain.n_agents: plain}, 2) as pool:
        seen = pool(plain.n_agents, plain.agents)
    np.testing.assert_array_equal(seen, recorded.expected)


def test_observing_fuses_in_place(recorded):
    fresh = recorded.plain.fresh()
    one_at_a_time.observe(fresh, 3, one_at_a_time.fuse_whole_map)  # UAV 1 of mission 1
    changed = np.array(fresh.beliefs) != np.array(recorded.plain.beliefs)
    assert changed.any((2, 3)).tolist() == [[False, False], [False, True], [False, False]]
