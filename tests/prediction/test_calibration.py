"""How far predicted shares can be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.prediction.calibration import BINS, Reliability
from marl_framework.prediction.figures import Picture, predictions_figure, reliability_figure
from tests.small import small_config

CPU = torch.device("cpu")


def test_bins_hold_what_a_loop_over_cells_puts_there() -> None:
    generator = torch.Generator().manual_seed(1)
    entropy, share, other = torch.rand(3, 40, 5, 5, generator=generator) + 1e-6
    found = Reliability(CPU)
    for part in range(2):  # in two parts
        rows = slice(20 * part, 20 * part + 20)
        found.add(entropy[rows], entropy[rows] * share[rows], entropy[rows] * other[rows])
    error = total = 0.0
    for number in range(BINS):
        cells = [
            (h, h * s, h * o)
            for h, s, o in zip(
                *(part.flatten().tolist() for part in (entropy, share, other)), strict=True
            )
            if min(int(s * BINS), BINS - 1) == number
        ]
        bits, predicted, realised = (sum(column) for column in zip(*cells, strict=True))
        assert found.cells[number] == len(cells)
        assert [share[number].item() for share in found.shares()] == pytest.approx(
            [predicted / bits, realised / bits], rel=1e-5
        )
        error, total = error + abs(predicted - realised), total + bits
    assert found.error() == pytest.approx(error / total, rel=1e-5)


def test_a_prediction_that_is_the_expectation_is_calibrated_and_a_bold_one_is_not() -> None:
    generator = torch.Generator().manual_seed(2)
    share = torch.rand(20_000, generator=generator)
    realised = (torch.rand(20_000, generator=generator) < share).float()
    bits = torch.ones(20_000)
    honest, bold = Reliability(CPU), Reliability(CPU)
    honest.add(bits, share, realised)
    bold.add(bits, (share > 0.5).float(), realised)
    assert honest.error() < 0.02
    assert bold.error() == pytest.approx(0.25, abs=0.02)


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


def size(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


def test_figures_have_a_row_for_each_picture(tmp_path: Path) -> None:
    config = small_config()
    maps = torch.rand(4, *config.geometry.map_shape)
    pictures = [
        Picture(name, maps[0], maps[1], maps[2], maps[3] > 0.5) for name in ("one", "other")
    ]
    sizes = []
    for number in (1, 2):
        predictions_figure(pictures[:number], config, tmp_path / "p.png")
        sizes.append(size(tmp_path / "p.png"))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] == 2 * sizes[0][1]
    found = Reliability(CPU)
    found.add(torch.ones(3), torch.tensor([0.1, 0.1, 0.9]), torch.ones(3))
    reliability_figure(found, tmp_path / "r.png")  # most bins are empty
    assert min(size(tmp_path / "r.png")) > 600
