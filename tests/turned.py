"""Missions flipped and turned by hand."""

import torch
from torch import Tensor

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState


def turned(maps: Tensor, turn: tuple[bool, bool, bool]) -> Tensor:
    """Exchange the last two axes, then flip the first, then the second of them."""
    swap, flip_x, flip_y = turn
    maps = maps.mT if swap else maps
    axes = [axis for axis, flip in ((-2, flip_x), (-1, flip_y)) if flip]
    return maps.flip(axes).contiguous()


def turned_mission(
    env: MissionEnvironment, state: MissionState, turn: tuple[bool, bool, bool]
) -> MissionState:
    """Turn all that observations are made of, by hand; `env` is that of the turned area."""
    after = state.clone()
    pooled = (name for name, _ in state.tensors() if name.startswith("pooled_"))
    for name in ("beliefs", "global_belief", *pooled):
        setattr(after, name, turned(getattr(state, name), turn))
    planar = state.positions[..., :2].flip(-1) if turn[0] else state.positions[..., :2].clone()
    for axis, flip in enumerate(turn[1:]):
        if flip:
            planar[..., axis] = env.lattice.shape[axis] - 1 - planar[..., axis]
    after.positions = torch.cat((planar, state.positions[..., 2:]), -1)
    readings = after.pooled_readings.clone()
    env.refresh(after)
    after.pooled_readings = readings
    return after
