"""Terrains from thresholded Gaussian random fields: clusters, and multi-scale landscapes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.terrains.raster import above, upsample

_TILES = 4  # per lattice spacing; one tile is 1.25 m in the paper's mission
_FIELD = 4  # windows across a field, so that a window does not show its period
_EXPONENTS, _FINE_EXPONENT = (2.0, 3.5), 1.0
_FINE_SHARES = (0.0, 0.7)  # fine part's share of the variance
_NUM_NUMBERS = 2


class RandomField:
    """Gaussian random fields with spectrum k^-`cluster_radius`, cut at half of their range."""

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        self._shape, self._device = config.geometry.map_shape, device
        extent = (config.environment.x_dim, config.environment.y_dim)
        exponent = config.sensor.simulation.cluster_radius
        self._amplitude = field_amplitude(self._shape, extent, exponent).to(device)

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers [num, R, C] float16."""
        # float16, as this is by far the largest draw; 11 bits per sample are enough for a field.
        size = (num, *self._shape)
        return torch.randn(size, generator=generator, device=self._device, dtype=torch.float16)

    def build(self, draws: Tensor) -> Tensor:
        """Return the ground truths [num, R, C] bool."""
        field = filtered(draws, self._amplitude)
        low, high = field.amin((-2, -1), keepdim=True), field.amax((-2, -1), keepdim=True)
        return field > (low + high) / 2


class Landscape:
    """Neutral landscapes, cut at `sensor.simulation.raster.threshold` like measured maps.

    A mission is a window of a Gaussian random field four times as long and wide. The field is the
    sum of a coarse part with the power spectrum k^-a and a fine one with k^-1. Each mission draws
    the exponent a, from 2 to 3.5, and the fine part's share of the variance within a window, from 0
    to 0.7. Windows of measured maps lie in these ranges. Raises ConfigError if the threshold is not
    a percentile.
    """

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        extent = (config.environment.x_dim, config.environment.y_dim)
        tiles = [_TILES * side / config.experiment.constraints.spacing for side in extent]
        self.shape = config.geometry.map_shape
        self.threshold = config.sensor.simulation.raster.threshold
        if not isinstance(self.threshold, str):
            raise ConfigError(
                f"sensor.simulation.raster.threshold: {self.threshold:g} is not a percentile; "
                "landscapes have no unit, set a percentile such as p60"
            )
        self._device, self._side = device, (tiles[0], tiles[1])
        self._window = (math.ceil(tiles[0]), math.ceil(tiles[1]))
        self._field = (_FIELD * self._window[0], _FIELD * self._window[1])
        self.bytes_per_mission = 30 * max(math.prod(self.shape), math.prod(self._field))
        waves = wavenumbers(self._field, (1, 1)) * max(tiles)  # per longer side of a window
        # Variance of the field due to a wave of power 1; inner columns represent both k and -k.
        # Waves longer than a window are ignored.
        weights = torch.full_like(waves, 2 / math.prod(self._field))
        weights[:, [0, -1]] /= 2
        weights[waves < 1] = 0
        waves[0, 0] = torch.inf  # power 0 for the mean
        self._weights = weights.float().to(device)
        self._log_waves = waves.log().float().to(device)
        self._fine = self._spectrum(torch.tensor(_FINE_EXPONENT, device=device))

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers [num, 2 + tiles of a field] float16.

        The first two numbers determine the exponent and the fine share.
        """
        size = (num, _NUM_NUMBERS + math.prod(self._field))
        return torch.randn(size, generator=generator, device=self._device, dtype=torch.float16)

    def windows(self, draws: Tensor) -> Tensor:
        """Return the values of each window, resampled to map cells, [E, R, C] float32."""
        uniform = torch.special.ndtr(draws[:, :_NUM_NUMBERS].float())[:, :, None, None]
        exponent = _between(uniform[:, 0], _EXPONENTS)
        fine_share = _between(uniform[:, 1], _FINE_SHARES)
        power = self._spectrum(exponent).lerp(self._fine, fine_share)
        field = filtered(draws[:, _NUM_NUMBERS:].unflatten(1, self._field), power.sqrt())
        return upsample(field[:, : self._window[0], : self._window[1]], self._side, self.shape)

    def build(self, draws: Tensor) -> Tensor:
        """Return the cells above the threshold, [E, R, C] bool."""
        return above(self.windows(draws), self.threshold)

    def _spectrum(self, exponent: Tensor) -> Tensor:
        """Return k^(-exponent), [E, …], scaled to variance 1 for waves that fit in a window."""
        power = torch.exp(-exponent * self._log_waves)
        return power / (power * self._weights).sum((-2, -1), keepdim=True)


def field_amplitude(shape: tuple[int, int], extent: tuple[float, float], exponent: float) -> Tensor:
    """Return the spectral amplitude k^(-exponent/2) for `rfft2`, [R, C // 2 + 1] float32.

    Wavenumbers k are per metre, so that clusters are isotropic; the amplitude of the mean is 0.
    `shape` is (R, C); `extent` is the size of the map [m].
    """
    (rows, cols), (x_dim, y_dim) = shape, extent
    k = wavenumbers(shape, (x_dim / rows, y_dim / cols)) * max(x_dim, y_dim)
    k[0, 0] = torch.inf
    return k.pow(-exponent / 2).float()


def wavenumbers(shape: tuple[int, int], cell: tuple[float, float]) -> Tensor:
    """Return wavenumbers, [R, C // 2 + 1] float64, in the layout of `torch.fft.rfft2`.

    `shape` is (R, C); `cell` is the size of a cell, and wavenumbers are per unit of `cell`.
    """
    kx = torch.fft.fftfreq(shape[0], cell[0], dtype=torch.float64)
    ky = torch.fft.rfftfreq(shape[1], cell[1], dtype=torch.float64)
    return torch.hypot(kx[:, None], ky)


def filtered(noise: Tensor, amplitude: Tensor) -> Tensor:
    """Filter white noise [E, R, C] into periodic Gaussian random fields [E, R, C] float32."""
    spectrum = torch.fft.rfft2(noise.float())
    return torch.fft.irfft2(spectrum * amplitude, s=noise.shape[-2:])


def _between(uniform: Tensor, limits: tuple[float, float]) -> Tensor:
    return limits[0] + (limits[1] - limits[0]) * uniform
