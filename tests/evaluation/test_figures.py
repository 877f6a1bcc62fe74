"""Figures: masks against slices, orientation, and files that a viewer opens."""

from __future__ import annotations

from pathlib import Path

import cv2
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image, ImageSequence

from marl_framework.evaluation import figures, report
from marl_framework.evaluation.flight import FlightRecord, cells_in_view, evaluate
from marl_framework.evaluation.statistics import statistics
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import RandomPlanner
from tests.small import small_config


def fly(agents: int = 3, missions: int = 2) -> FlightRecord:
    config = small_config(dims=(30.0, 20.0), agents=agents, max_altitude=10.0)
    env = MissionEnvironment(config, missions, "cpu", "test")
    return evaluate(env, RandomPlanner(env.lattice), missions, 1)


@given(rows=st.tuples(*[st.integers(0, 9)] * 2), cols=st.tuples(*[st.integers(0, 13)] * 2))
def test_cells_in_view_are_those_of_half_open_footprints(
    rows: tuple[int, int], cols: tuple[int, int]
) -> None:
    (row0, row1), (col0, col1) = sorted(rows), sorted(cols)
    expected = torch.zeros(9, 13, dtype=torch.bool)
    expected[row0:row1, col0:col1] = True
    footprints = torch.tensor([[row0, row1, col0, col1], [2, 5, 3, 4]])
    assert torch.equal(cells_in_view(footprints[:1], (9, 13)), expected)
    expected[2:5, 3:4] = True
    assert torch.equal(cells_in_view(footprints, (9, 13)), expected)


def test_maps_lie_with_x_to_the_right_and_y_up() -> None:
    record = fly()
    axes = Figure().add_subplot()
    figures.draw_terrain(axes, record.alone(0))
    terrain, veil = axes.images
    shown = np.asarray(terrain.get_array())
    truth = record.truth[0].numpy()
    assert shown.shape == truth.shape[::-1]
    assert shown[3, 7] == truth[7, 3]
    assert (shown == truth.T).all()
    left, right, bottom, top = terrain.get_extent()
    res_x, res_y = record.config.geometry.cell_size
    assert (left, bottom) == (0, 0)
    assert (right, top) == pytest.approx((truth.shape[0] * res_x, truth.shape[1] * res_y))
    assert terrain.origin == veil.origin == "lower"
    unseen = 1 - record.metrics["coverage"][0, -1].item()
    assert (np.asarray(veil.get_array())[..., 3] > 0).mean() == pytest.approx(unseen)


def test_figures_are_written_without_pyplot(tmp_path: Path) -> None:
    record = fly(agents=9)
    found = report.results({"random": record, "again": record}, {}, {})
    one = report.results({"random": fly(missions=1)}, {}, {})
    paths = [tmp_path / f"{name}.png" for name in ("mission", "curves", "one")]
    figures.mission_figure(record, 0, paths[0])
    figures.curves_figure(found, paths[1])
    figures.curves_figure(one, paths[2])
    for path in paths:
        picture = cv2.imread(str(path))
        assert picture is not None
        assert picture.shape[1] > 1500
        assert picture.std() > 10
    assert plt.get_fignums() == []


def test_a_film_shows_every_round(tmp_path: Path) -> None:
    record = fly(missions=1)
    rounds = record.config.missions.episode_length + 2
    assert record.film.shape[:2] == (1, rounds)
    assert torch.equal(record.film[0, -1], record.belief[0].half())
    figures.film_strip(record, 0, tmp_path / "film.png")
    assert cv2.imread(str(tmp_path / "film.png")).std() > 10
    figures.mission_gif(record, 0, tmp_path / "mission.gif")
    with Image.open(tmp_path / "mission.gif") as image:
        pictures = [np.asarray(each.convert("RGB")) for each in ImageSequence.Iterator(image)]
    assert len(pictures) == rounds - 1
    assert len({picture.tobytes() for picture in pictures}) == rounds - 1
    assert plt.get_fignums() == []


def test_bands_are_as_wide_as_the_tables_standard_error() -> None:
    axes = Figure().add_subplot()
    values = torch.rand(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blocks = torch.arange(12) // 4
    figures.draw_curve(axes, values, blocks, "random", 0)
    (band,) = axes.collections
    (path,) = band.get_paths()
    last = path.vertices[path.vertices[:, 0] == 3, 1]
    error = statistics(values[:, -1], blocks)["standard_error"]
    assert last.max() - last.min() == pytest.approx(2 * error)
    figures.draw_curve(axes, values, torch.zeros(12), "random", 1)
    assert len(axes.collections) == 1  # a single block has none


def test_a_uav_that_has_stopped_has_no_footprint() -> None:
    config = small_config(agents=2, constraints={"cost": {"limit": 22.0, "climb": 3.0}}, budget=9)
    env = MissionEnvironment(config, 8, "cpu", "test")
    record = evaluate(env, RandomPlanner(env.lattice), 8, 1, keep_maps=8)
    last = [record.alone(e).active[0, -1].tolist() for e in range(8)]
    stopped = next(e for e in range(8) if sorted(last[e]) == [False, True])
    axes = Figure().add_subplot()
    figures.draw_terrain(axes, record.alone(stopped))
    outlines = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert [len(np.asarray(line.get_xdata())) > 0 for line in outlines] == last[stopped]


def test_a_mission_without_maps_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="mission 1"):
        figures.mission_figure(fly(), 1, tmp_path / "none.png")
