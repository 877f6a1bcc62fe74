"""The channel of the latest reading, for sensors that err to both sides alike and not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from marl_framework.mission.area import interval_overlap
from marl_framework.mission.belief import weighted_entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import random_actions, small_config


@pytest.mark.parametrize("sensor", [{}, ASYMMETRIC])
def test_local_entropy_is_that_of_the_mean_likelihood_in_the_square(sensor: dict[str, Any]) -> None:
    env = MissionEnvironment(small_config(sensor=sensor), 4, "cpu")
    builder = ObservationBuilder(env.config, env.lattice, env.camera)
    state = env.reset(env.draw_reset())
    for _ in range(3):
        env.step(state, random_actions(env, state, env.generator), env.draw_step())
    found = builder.actor(state)[:, :, builder.actor_channels.index("local_entropy")]
    likelihood = env.camera.likelihood(state.readings, state.positions)
    footprint = env.camera.footprint(state.positions)
    beyond = 0
    for e in range(4):
        for i in range(3):
            seen = [int(field[e, i]) for field in footprint]
            row0, row1, col0, col1, window_row, window_col, top, left = seen
            side = env.camera.sides[0][state.positions[e, i, 2]]
            square = torch.full((side, side), 0.5)  # of the whole footprint, on the map or not
            square[row0 - top : row1 - top, col0 - left : col1 - left] = likelihood[
                e, i, row0 - window_row : row1 - window_row, col0 - window_col : col1 - window_col
            ]
            beyond += (row1 - row0) * (col1 - col0) < side * side
            cells, width = torch.arange(side).double(), torch.tensor(side / 7).double()
            parts = torch.arange(7).unsqueeze(1) * width
            weights = interval_overlap(cells, cells + 1, parts, width).float()
            mean = weights @ square @ weights.T
            torch.testing.assert_close(found[e, i], weighted_entropy(mean), rtol=0, atol=1e-5)
    assert beyond > 0
