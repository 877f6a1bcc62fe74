"""The minimum work of a joint step, counted from flown missions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.helpers import least_work
from benchmarks.helpers.command_line import with_overrides
from marl_framework.mission.environment import MissionEnvironment


def test_work_of_a_lonely_uav(config):
    """It hears nobody, and its measured cells are all seen cells."""
    work = least_work.count_work(with_overrides(config, "experiment.missions.n_agents=1"))
    cells = work["cells_measured"]
    assert cells > 0
    assert work["cells_heard"] == 0
    assert work["cells_seen"] == work["cells_updated"] == cells
    assert work["bayes_updates"] == 2 * cells
    assert work["bytes"] == 15 * cells + 8 * cells + 4 * (9 + 15) * 11 * 11


def test_work_counts_each_seen_cell_once_and_each_message(config, monkeypatch):
    """All UAVs hear each other; the views are painted cell by cell."""
    loud = with_overrides(config, "experiment.uav.communication_range=.inf")
    views = []

    class Watched(MissionEnvironment):
        def step(self, state, actions, draws=None):
            result = super().step(state, actions, draws)
            for box in torch.stack(self.camera.footprint(state.positions), -1).tolist():
                view = np.zeros(self.camera.shape)
                for row0, row1, col0, col1, *_ in box:
                    view[row0:row1, col0:col1] += 1
                views.append(view)
            return result

    monkeypatch.setattr(least_work, "COUNTED", 2)
    monkeypatch.setattr(least_work, "MissionEnvironment", Watched)
    work = least_work.count_work(loud)
    assert len(views) == 2 * loud.missions.episode_length
    measured, seen = (np.mean([of(view) for view in views]) for of in (np.sum, np.count_nonzero))
    assert work["cells_measured"] == work["cells_heard"] == pytest.approx(measured)  # of two UAVs
    assert work["cells_seen"] == pytest.approx(seen)
    assert work["cells_updated"] == pytest.approx(2 * seen)  # by both UAVs
    entropies = 2 * work["cells_seen"] + work["cells_measured"] + work["cells_heard"]
    assert work["logarithms"] == 4 * entropies  # params_test.yaml has the uncertainty maps
