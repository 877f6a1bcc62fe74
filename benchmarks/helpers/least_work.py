"""Minimum work per joint step: cells, logarithms and bytes."""

from __future__ import annotations

import torch

from benchmarks.helpers.command_line import with_overrides
from benchmarks.helpers.harness import CPU
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import RandomPlanner

COUNTED = 16  # number of missions flown


@torch.no_grad()
def count_work(config: Config) -> dict[str, float]:
    """Count the minimum work of missions flown at random; return means per joint step.

    Bytes count each array once per operation: truth, random bits (written, read), readings, belief
    cells (read, written), and the maps of observations and critic states.

    Returns:
        `cells_measured` by all UAVs, `cells_heard`, `cells_updated` (cells in own beliefs, each
        once), `cells_seen` (by any UAV, each once), `bayes_updates`, `logarithms`, `bytes`.
    """
    env = MissionEnvironment(with_overrides(config, "compute.compile=true"), COUNTED, CPU)
    planner, state = RandomPlanner(env.lattice), env.reset()
    rows, cols = (torch.arange(side) for side in env.camera.shape)
    totals = torch.zeros(4, dtype=torch.int64)
    for _ in range(env.episode_length):
        actions = planner.act(state, env.generator).actions
        env.step(state, actions)
        box = env.camera.footprint(state.positions)
        cells = (box.row1 - box.row0) * (box.col1 - box.col0)
        in_rows = (rows >= box.row0.unsqueeze(-1)) & (rows < box.row1.unsqueeze(-1))
        in_cols = (cols >= box.col0.unsqueeze(-1)) & (cols < box.col1.unsqueeze(-1))
        in_view = in_rows.unsqueeze(-1) & in_cols.unsqueeze(-2)  # [E, N, R, C]
        maps = [in_view & heard[..., None, None] for heard in state.heard.unbind(1)]  # per UAV
        updated = torch.stack([cells_of_uav.any(1).sum() for cells_of_uav in maps]).sum()
        heard = (state.heard * cells.unsqueeze(1)).sum() - cells.sum()
        totals += torch.stack((cells.sum(), heard, updated, in_view.any(1).sum()))
    steps = COUNTED * env.episode_length
    measured, received, updated_cells, seen = (total / steps for total in totals.tolist())
    x, y, _ = env.lattice.shape
    observation = config.observation
    sees_uncertainty = observation.sees_uncertainty
    channels = len(observation.actor_channels) + len(observation.critic_channels)
    return {
        "cells_measured": measured,
        "cells_heard": received,
        "cells_updated": updated_cells,
        "cells_seen": seen,
        "bayes_updates": 2 * measured + received,  # own belief, global belief; own belief
        # Logarithms of p and 1 - p, before and after, of the global belief; if uncertainty is
        # observed, of all beliefs.
        "logarithms": 4 * seen + 4 * sees_uncertainty * (seen + measured + received),
        # Per measured cell: bits 2 + 2, truth 1, reading 1 + 1, own belief 4 + 4. Per heard cell:
        # reading 1, own belief 4 + 4. Per seen cell: global belief 4 + 4.
        "bytes": 15 * measured + 9 * received + 8 * seen + 4 * env.n_agents * channels * x * y,
    }
