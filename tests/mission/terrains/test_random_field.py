"""Random fields and landscapes: against numpy, and their cuts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.terrains.mixture import Terrain
from marl_framework.mission.terrains.random_field import Landscape, field_amplitude, filtered
from tests.mission.terrains.small_terrains import configuration, drawn


@pytest.mark.parametrize("shape", [(12, 12), (9, 14), (8, 15)])
def test_field_equals_filtering_mode_by_mode_with_numpy(shape) -> None:
    noise = torch.randn(2, *shape)
    field = filtered(noise, field_amplitude(shape, (30.0, 45.0), 3.0))
    spectrum = np.fft.fft2(noise.double().numpy())
    for r in range(shape[0]):
        for c in range(shape[1]):
            m = min(r, shape[0] - r) / 30.0
            n = min(c, shape[1] - c) / 45.0
            k = math.hypot(m, n) * 45.0
            spectrum[:, r, c] *= k**-1.5 if k > 0 else 0.0
    expected = np.fft.ifft2(spectrum)
    np.testing.assert_allclose(expected.imag, 0, atol=1e-9)
    np.testing.assert_allclose(field.numpy(), expected.real, atol=1e-5)


def test_fields_are_cut_at_half_of_their_own_range() -> None:
    terrain = Terrain(configuration("random_field"), "cpu", "training")
    draws = drawn(terrain, 12)
    truth = terrain.build(draws).numpy()
    amplitude = field_amplitude(terrain.shape, (40.0, 50.0), 5.0)
    for e in range(12):
        field = filtered(draws.numbers[0][e : e + 1], amplitude)[0].numpy()
        scaled = (field - field.min()) / (field.max() - field.min())
        clear = np.abs(scaled - 0.5) > 1e-5
        assert clear.mean() > 0.999
        np.testing.assert_array_equal(truth[e][clear], scaled[clear] > 0.5)


def landscape(threshold: str | float = "p60") -> Landscape:
    """Windows of 10 × 16 tiles, a cell each, of fields of 40 × 64."""
    config = Config.model_validate(
        {
            "environment": {"x_dim": 40.0, "y_dim": 64.0},
            "experiment": {
                "constraints": {"spacing": 16.0, "min_altitude": 16, "max_altitude": 16}
            },
            "sensor": {"simulation": {"kinds": ("landscape",), "raster": {"threshold": threshold}}},
        }
    )
    made = Landscape(config, torch.device("cpu"), "training")
    made.shape = (10, 16)
    return made


def numbers(terrain: Landscape, num: int, exponent: float, fine_share: float) -> torch.Tensor:
    """Draws with a given exponent and fine share."""
    draws = terrain.draw(num, torch.Generator().manual_seed(1))
    shares = torch.tensor([(exponent - 2) / 1.5, fine_share / 0.7], dtype=torch.float64)
    draws[:, :2] = torch.special.ndtri(shares)
    return draws


@pytest.mark.parametrize(("exponent", "fine_share"), [(3.0, 0.3), (2.25, 0.6)])
def test_windows_equal_filtering_mode_by_mode_with_numpy(exponent, fine_share) -> None:
    terrain = landscape()
    draws = numbers(terrain, 2, exponent, fine_share)
    spectrum = np.fft.fft2(draws[:, 2:].double().numpy().reshape(2, 40, 64))
    x, y = np.meshgrid(np.fft.fftfreq(40), np.fft.fftfreq(64), indexing="ij")
    k = np.hypot(x, y) * 16
    power = np.zeros((2, 40, 64))
    for part, a in enumerate((exponent, 1.0)):
        power[part][k > 0] = k[k > 0] ** -a
        power[part] *= 40 * 64 / power[part][k >= 1].sum()
    both = (1 - fine_share) * power[0] + fine_share * power[1]
    expected = np.fft.ifft2(spectrum * np.sqrt(both)).real[:, :10, :16]
    # The two drawn numbers are of float16.
    np.testing.assert_allclose(terrain.windows(draws).numpy(), expected, atol=5e-3)


def test_windows_are_cut_at_their_own_percentile_and_at_nothing_else() -> None:
    draws = landscape().draw(40, torch.Generator().manual_seed(2))
    assert landscape("p60").build(draws).sum((1, 2)).tolist() == [64] * 40
    assert landscape("p90").build(draws).sum((1, 2)).tolist() == [16] * 40
    with pytest.raises(ConfigError, match=r"raster\.threshold: 0\.5 .* percentile such as p60"):
        landscape(0.5)


def test_what_leaves_a_window_does_not_return_at_the_opposite_edge() -> None:
    terrain = landscape()
    values = terrain.windows(numbers(terrain, 400, 3.0, 0.0))
    values = values - values.mean((1, 2), keepdim=True)
    variance = values.square().mean()
    beside = (values[:, :, 1:] * values[:, :, :-1]).mean() / variance
    across = (values[:, :, 0] * values[:, :, -1]).mean() / variance
    assert beside > 0.7
    assert across < 0


def test_missions_differ_in_roughness() -> None:
    terrain = Terrain(configuration("landscape"), "cpu", "training")
    truth = terrain.build(drawn(terrain, 64))
    borders = (truth[:, :, 1:] != truth[:, :, :-1]).float().mean((1, 2))
    assert borders.max() > 2 * borders.min()
