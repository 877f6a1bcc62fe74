"""The cost of flying against its sizes, and what a step must do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.helpers.command_line import with_overrides
from benchmarks.speed import scaling
from marl_framework.config.loading import load_config
from marl_framework.mission.environment import MissionEnvironment
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_scaling_writes_exponents_of_its_rows_and_a_figure(tmp_path, capsys):
    found = run(scaling, tmp_path, "--quick")
    assert [axis["axis"] for axis in found["axes"]] == ["missions", "uavs", "cells", "positions"]
    for axis, described in zip(found["axes"], scaling.AXES, strict=True):
        sizes = [row["size"] for row in axis["rows"]]
        assert [row["value"] for row in axis["rows"]] == list(described.quick)
        assert sizes == sorted(set(sizes))
        assert all(r["lower_quartile"] <= r["seconds_per_step"] for r in axis["rows"])
        half = len(sizes) // 2 + 1
        fitted = np.polyfit(
            np.log(sizes[-half:]), np.log([r["seconds_per_step"] for r in axis["rows"]][-half:]), 1
        )
        assert axis["exponent"] == pytest.approx(fitted[0])
    by_name = {axis["axis"]: axis for axis in found["axes"]}
    assert [row["size"] for row in by_name["cells"]["rows"]] == [103**2, 207**2]
    assert [row["size"] for row in by_name["positions"]["rows"]] == [6**2, 11**2]
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert "lattice positions" in capsys.readouterr().out


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.0])
def test_exponent_of_known_growth(exponent):
    sizes = [1, 2, 4, 8, 16, 32]
    grown = [1e-3 * size**exponent for size in sizes]
    assert scaling.fit_exponent(sizes, grown) == pytest.approx(exponent)
    assert scaling.fit_exponent(sizes[-2:], grown[-2:]) == pytest.approx(exponent)


def test_exponent_looks_at_the_larger_half_alone():
    sizes = [1, 2, 4, 8, 16, 32]
    seconds = [5.0, 5.0, 4.0, 8.0, 16.0, 32.0]
    assert scaling.fit_exponent(sizes, seconds) == pytest.approx(1)


def test_one_size_has_no_exponent():
    with pytest.raises(ValueError, match="two sizes"):
        scaling.fit_exponent([1], [1.0])


def test_every_size_suits_the_paper():
    config = load_config("params.yaml")
    for axis in scaling.AXES:
        changed = [with_overrides(config, *axis.setting(config, value)) for value in axis.values]
        sizes = [axis.size(one) for one in changed]
        assert sizes == sorted(set(sizes))
    sides = scaling.AXES[-1].values
    assert sizes == [side**2 for side in sides]


def test_work_of_a_lonely_uav(config):
    """It hears nobody, and what it measures is all that is seen."""
    work = scaling.count_work(with_overrides(config, "experiment.missions.n_agents=1"))
    cells = work["cells_measured"]
    assert cells > 0
    assert work["cells_heard"] == 0
    assert work["cells_seen"] == cells
    assert work["bayes_updates"] == 2 * cells
    assert work["bytes"] == 15 * cells + 8 * cells + 4 * (9 + 15) * 11 * 11


def test_work_counts_each_seen_cell_once_and_each_message(config, monkeypatch):
    """All UAVs hear each other; the views are painted one cell after the other."""
    monkeypatch.setattr(scaling, "COUNTED", 2)
    loud = with_overrides(config, "experiment.uav.communication_range=.inf")
    views = []

    class Watched(MissionEnvironment):
        def step(self, state, actions, draws):
            result = super().step(state, actions, draws)
            for box in torch.stack(self.camera.footprint(state.positions), -1).tolist():
                view = np.zeros(self.camera.shape)
                for row0, row1, col0, col1, *_ in box:
                    view[row0:row1, col0:col1] += 1
                views.append(view)
            return result

    monkeypatch.setattr(scaling, "MissionEnvironment", Watched)
    work = scaling.count_work(loud)
    assert len(views) == 2 * loud.episode_length
    measured = sum(view.sum() for view in views) / len(views)
    assert work["cells_measured"] == pytest.approx(measured)
    assert work["cells_heard"] == pytest.approx(measured)  # the other one's, for two UAVs
    assert work["cells_seen"] == pytest.approx(sum((v > 0).sum() for v in views) / len(views))
    entropies = 2 * work["cells_seen"] + work["cells_measured"] + work["cells_heard"]
    assert work["logarithms"] == 4 * entropies  # params_test.yaml has the uncertainty maps


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seconds-per-row", "0"], "--seconds-per-row 0"),
        (["--set", "environment.x_dim=3"], "lattice"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--out", "found.txt"], "must end in .json"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, complaint, tmp_path, capsys):
    assert complaint in refusal(scaling, tmp_path, capsys, *arguments)
