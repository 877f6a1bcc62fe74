"""Mission windows on the device: crops, upsampling, symmetries, thresholds."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from marl_framework.mission.terrains.raster import RasterTerrain, orient, percentile, upsample
from marl_framework.mission.terrains.raster_file import find_windows
from tests.mission.terrains.small_terrains import bumps, over_map, saved


def unturned(window: torch.Tensor) -> torch.Tensor:
    """Draws of windows as they lie on the map."""
    return torch.stack((window, torch.zeros_like(window)), 1)


def test_a_crop_of_whole_cells_is_the_slice_itself(tmp_path, device) -> None:
    values = np.random.default_rng(0).integers(-2000, 2000, (150, 60)).astype(np.float32)
    config = over_map(saved(tmp_path, values), resolution=1.25)  # 40 pixels for 40 cells
    assert config.geometry.map_shape == (40, 40)
    found = find_windows(config, "training")
    terrain = RasterTerrain(config, device, "training")
    window = torch.arange(0, terrain.num_windows, 97, device=device)
    crops = terrain.windows(unturned(window)).cpu().numpy()
    for crop, (r, c) in zip(crops, found.corners[window.cpu().numpy()], strict=True):
        np.testing.assert_array_equal(crop, found.values[r : r + 40, c : c + 40])


@pytest.mark.parametrize("pixels", [(5, 5), (7, 12), (31, 40)])
def test_upsampling_equals_opencv(pixels, device) -> None:
    windows = torch.randn(3, *pixels)
    found = upsample(windows.to(device), pixels, (40, 48)).cpu().numpy()
    for mine, window in zip(found, windows.numpy(), strict=True):
        expected = cv2.resize(window, (48, 40), interpolation=cv2.INTER_LINEAR)
        np.testing.assert_allclose(mine, expected, atol=1e-5)


def test_a_window_of_fractional_pixels_is_sampled_at_the_centres_of_its_cells(device) -> None:
    # On the plane 2x + 3y (x, y in pixels from the window's corner) bilinear values are exact.
    centre = torch.arange(5) + 0.5
    plane = (2 * centre[:, None] + 3 * centre[:4])[None].to(device)
    found = upsample(plane, (4.25, 3.5), (17, 28))[0].cpu()
    x = ((torch.arange(17) + 0.5) * 4.25 / 17).clamp(0.5, 4.5)
    y = ((torch.arange(28) + 0.5) * 3.5 / 28).clamp(0.5, 3.5)
    torch.testing.assert_close(found, 2 * x[:, None] + 3 * y)


def test_symmetries_are_the_eight_of_the_square_each_environment_its_own(device) -> None:
    pixels = torch.randn(1, 5, 5, device=device)
    found = orient(pixels.expand(8, 5, 5), torch.arange(8, device=device))
    group = [torch.rot90(p, k, (1, 2))[0] for p in (pixels, pixels.mT) for k in range(4)]
    matches = torch.tensor([[torch.equal(one, other) for other in group] for one in found])
    for symmetry, turns in ((0, 0), (3, 2), (5, 1), (6, -1)):
        assert torch.equal(found[symmetry], pixels[0].rot90(turns))
    assert torch.equal(found[1], pixels[0].flip(0))
    assert torch.equal(found[2], pixels[0].flip(1))
    assert matches.sum(0).tolist() == matches.sum(1).tolist() == [1] * 8


def test_oblong_missions_are_flipped_but_not_turned(tmp_path) -> None:
    config = over_map(saved(tmp_path, bumps(40, 30)), (30, 60), resolution=10.0)
    terrain = RasterTerrain(config, torch.device("cpu"), "training")
    assert terrain.num_symmetries == 4
    window = torch.zeros(4, dtype=torch.int64)
    values = terrain.windows(torch.stack((window, torch.arange(4)), 1))
    assert values.shape == (4, *config.geometry.map_shape)
    for k, axes in enumerate([[], [0], [1], [0, 1]]):
        assert torch.allclose(values[k], values[0].flip(axes), atol=1e-6)


# Thresholds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("percent", [0.5, 10, 37.5, 50, 60, 75, 99.9])
def test_cells_above_a_percentile_are_those_of_numpy(percent) -> None:
    smooth, steps = torch.randn(4, 23, 19), torch.randint(0, 6, (4, 23, 19)).float()
    for values in (smooth, steps):
        found = (values > percentile(values, percent)).numpy()
        for mine, window in zip(found, values.double().numpy(), strict=True):
            np.testing.assert_array_equal(mine, window > np.percentile(window, percent))


def test_a_percentile_is_taken_of_each_window_and_a_value_of_all(tmp_path, device) -> None:
    values = bumps(90, 30) + np.linspace(0, 20, 90, dtype=np.float32)[:, None]
    path = saved(tmp_path, values)
    window = torch.arange(0, 60, 7, device=device)
    draws = unturned(window)
    relative = RasterTerrain(over_map(path, resolution=5.0), device, "training")
    share = relative.build(draws).double().mean((1, 2))
    assert torch.allclose(share, torch.full_like(share, 0.4), atol=2 / 1600)
    absolute = RasterTerrain(over_map(path, resolution=5.0, threshold=4.0), device, "training")
    expected = absolute.windows(draws) > 4.0
    assert torch.equal(absolute.build(draws), expected)
