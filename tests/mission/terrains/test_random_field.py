"""Random fields: against numpy, their spectrum, their threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marl_framework.mission.terrains.mixture import Terrain
from marl_framework.mission.terrains.random_field import (
    field_amplitude,
    filtered,
)
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
