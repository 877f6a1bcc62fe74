from __future__ import annotations

import math

import pytest
import torch

from marl_framework.kernels.cells import area_pool
from marl_framework.kernels.versions import Version
from marl_framework.kernels.windows import View, read
from marl_framework.mission.camera import Camera
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import small_config


def every_position(config):
    x, y, z = config.geometry.lattice_shape
    return torch.cartesian_prod(torch.arange(x), torch.arange(y), torch.arange(z)).unsqueeze(1)


def paper_config(**options):
    return small_config(pixels=(57, 57), dims=(50.0, 50.0), **options)


def test_the_papers_geometry():
    config = paper_config()
    camera = Camera(config, "cpu")
    assert camera.shape == (493, 493)
    assert camera.sides == [[56, 114, 170], [56, 114, 170]]
    assert camera.window == (170, 170)
    assert camera.error_rates[:, 0].tolist() == pytest.approx([0.01, 0.265, 0.375])
    assert torch.equal(camera.error_rates[:, 1], camera.error_rates[:, 0])


@pytest.mark.parametrize(
    ("pixels", "dims"), [((57, 57), (50.0, 50.0)), ((9, 14), (30.0, 20.0)), ((8, 8), (5.0, 10.0))]
)
def test_footprints_equal_a_plain_loop_and_reach_the_edges(pixels, dims):
    config = small_config(pixels=pixels, dims=dims, agents=1)
    camera = Camera(config, "cpu")
    positions = every_position(config)
    footprint = camera.footprint(positions)
    for k, (ix, iy, iz) in enumerate(positions.squeeze(1).tolist()):
        h = config.geometry.altitudes[iz]
        for index, axis, low, high, first in (
            (ix, 0, footprint.row0, footprint.row1, footprint.window_row),
            (iy, 1, footprint.col0, footprint.col1, footprint.window_col),
        ):
            res, cells = config.geometry.cell_size[axis], camera.shape[axis]
            side = 2 * (math.floor(2 * h * math.tan(math.radians(30)) / res + 1e-9) // 2)
            centre = math.floor(index * 5 / res + 1e-9)
            assert low[k, 0] == max(centre - side // 2, 0)
            assert high[k, 0] == min(max(centre + side // 2, 0), cells)
            assert 0 <= first[k, 0] <= low[k, 0] or low[k, 0] == cells
            assert high[k, 0] <= first[k, 0] + camera.window[axis] <= cells
    assert footprint.row1.max() == camera.shape[0]
    assert footprint.col1.max() == camera.shape[1]


@pytest.mark.parametrize("sensor", [{}, ASYMMETRIC])
def test_readings_are_the_truth_with_the_sensors_error_rates(sensor):
    config = paper_config(agents=3, sensor=sensor)
    camera = Camera(config, "cpu")
    generator = torch.Generator().manual_seed(1)
    truth = torch.rand(8, *camera.shape, generator=generator) < 0.4
    positions = torch.tensor([[5, 5, 0], [4, 6, 1], [5, 4, 2]]).expand(8, -1, -1)
    bits = torch.randint(
        -(2**15), 2**15, (8, 3, *camera.window), generator=generator, dtype=torch.int16
    )
    readings, pooled = torch.zeros(bits.shape, dtype=torch.int8), torch.zeros(8, 3, 11, 11)
    tables = camera.optics.odds, camera.optics.flip_below
    odds, flip_below = (table[positions[..., 2]] for table in tables)
    view = View(camera.optics, positions, camera.boxes(positions), odds, torch.ones(8).bool())
    read(Version.PLAIN, view, truth, bits, flip_below, None, readings, pooled)
    footprint = camera.footprint(positions)
    for n, side in enumerate((56, 114, 170)):
        signs = readings[:, n]
        assert (signs != 0).sum() == 8 * side * side
        index = camera.window_index(footprint)[:, n]
        below = truth.flatten(1).gather(1, index).view_as(signs)
        for sign, kind, rate in zip((-1, 1), (below, ~below), camera.error_rates[n], strict=True):
            seen = (kind & (signs != 0)).sum()
            wrong = (kind & (signs == sign)).sum() / seen
            # Five standard deviations of a binomial share.
            assert abs(wrong - rate) < 5 * math.sqrt(rate * (1 - rate) / seen)


@pytest.mark.parametrize(
    ("sensor", "expected"),
    [
        ({}, [0.735, 0.265, 0.5]),
        (ASYMMETRIC, [0.8 / (0.8 + 0.03), 0.2 / (0.2 + 0.97), 0.5]),  # 0.2 missed, 0.03 alarms
    ],
)
def test_likelihood_is_the_posterior_of_one_half(sensor, expected):
    camera = Camera(paper_config(agents=1, sensor=sensor), "cpu")
    readings = torch.tensor([[[[1, -1, 0]]]], dtype=torch.int8)
    likelihood = camera.likelihood(readings, torch.tensor([[[5, 5, 1]]]))
    assert likelihood.flatten().tolist() == pytest.approx(expected)


def test_the_cover_of_the_footprints_parts_is_their_share_on_the_map():
    config = small_config(pixels=(9, 14), dims=(30.0, 20.0), agents=1)
    camera, positions = Camera(config, "cpu"), every_position(config)
    rows, cols = camera.tile_weights(positions)
    read = torch.ones(len(positions), 1, *camera.window)
    torch.testing.assert_close(camera.tile_cover(positions), area_pool(read, rows, cols))
    assert camera.tile_cover(positions).min() == 0
