"""Missions flown to their middle."""

from __future__ import annotations

import torch

from benchmarks.helpers import mid_mission


def test_missions_are_the_same_every_time(recorded):
    again = mid_mission.fly(recorded.config, 3)
    for (name, one), (_, other) in zip(
        again.state.tensors(), recorded.flown.state.tensors(), strict=True
    ):
        assert torch.equal(one, other), name
    assert len(again.state.positions[..., 2].unique()) > 1
    assert all(recorded.plain.senders(k) == [1 - k % 2] for k in range(6))
