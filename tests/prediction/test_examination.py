"""How far predicted shares can be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.prediction import examination
from marl_framework.prediction.examination import BINS, Picture, Reliability
from tests.small import small_config

CPU = torch.device("cpu")


def test_bins_hold_what_a_loop_over_cells_puts_there() -> None:
    generator = torch.Generator().manual_seed(1)
    entropy, share, other = torch.rand(3, 40, 5, 5, generator=generator) + 1e-6
    found = Reliability(CPU)
    for part in (slice(20), slice(20, 40)):
        found.add(entropy[part], entropy[part] * share[part], entropy[part] * other[part])
    error = total = 0.0
    numbers = (share * BINS).int().clamp(max=BINS - 1)
    for number in range(BINS):
        h, s, o = (values[numbers == number].tolist() for values in (entropy, share, other))
        predicted, realised = (sum(a * b for a, b in zip(h, x, strict=True)) for x in (s, o))
        assert found.cells[number] == len(h)
        parts = (found.open_entropy, found.predicted, found.realised)
        sums = [part[number].item() for part in parts]
        assert sums == pytest.approx([sum(h), predicted, realised], rel=1e-5)
        error, total = error + abs(predicted - realised), total + sum(h)
    assert found.error() == pytest.approx(error / total, rel=1e-5)


@pytest.mark.parametrize("pixels", [(11, 13), (2, 2)])  # or positions without cells
def test_cells_show_the_mean_of_their_position(pixels: tuple[int, int]) -> None:
    env = MissionEnvironment(small_config(pixels=pixels, dims=(30.0, 20.0)), 1, "cpu", "test")
    view = LatticeView(env.config, env.lattice)
    maps = torch.rand(env.config.geometry.map_shape)
    shown = view.spread(view.sums(maps))
    torch.testing.assert_close(view.sums(shown), view.sums(maps))
    assert len(shown.unique()) == view.sums(torch.ones_like(maps)).count_nonzero()


def test_positions_without_cells_do_not_count() -> None:
    found = Reliability(CPU)
    found.add(torch.tensor([1.0, 0.0]), torch.tensor([0.7, 0.0]), torch.tensor([0.5, 0.0]))
    assert found.error() == pytest.approx(0.2)
    assert found.cells[7] == 1


def test_figures_have_a_row_for_each_picture(tmp_path: Path) -> None:
    def size(file: str) -> tuple[int, int]:
        with Image.open(tmp_path / file) as image:
            return image.size

    config = small_config()
    maps = torch.rand(4, *config.geometry.map_shape)
    picture = Picture("one", *maps[:3], maps[3] > 0.5)
    for number in (1, 2):
        examination.predictions_figure([picture] * number, config, tmp_path / f"{number}.png")
    assert size("2.png") == (size("1.png")[0], 2 * size("1.png")[1])
    found = Reliability(CPU)
    found.add(torch.ones(3), torch.tensor([0.1, 0.1, 0.9]), torch.ones(3))
    examination.reliability_figure(found, tmp_path / "r.png")  # most bins are empty
    assert min(size("r.png")) > 600
