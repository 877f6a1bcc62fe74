"""Ground cut out of Gaussian random fields: clusters, and landscapes rough at all scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.terrains.raster import above, upsample

_TILES = 4  # per spacing of the lattice: 1.25 m in the paper's mission
_FIELD = 4  # windows across a field, so that a window does not see its period
_EXPONENTS, _FINE_EXPONENT = (2.0, 3.5), 1.0
_FINE_SHARES = (0.0, 0.7)  # of the fine part
_NUM_NUMBERS = 2


class RandomField:
    """Gaussian random fields with the spectrum k^-`cluster_radius`, cut at half of their range."""

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        self._shape, self._device = config.geometry.map_shape, device
        extent = (config.environment.x_dim, config.environment.y_dim)
        exponent = config.sensor.simulation.cluster_radius
        self._amplitude = field_amplitude(self._shape, extent, exponent).to(device)

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers [num, R, C] float16."""
        # The largest draw by far; 11 bits of a normal sample are plenty for a field.
        size = (num, *self._shape)
        return torch.randn(size, generator=generator, device=self._device, dtype=torch.float16)

    def build(self, draws: Tensor) -> Tensor:
        """Return the ground truths [num, R, C] bool."""
        field = filtered(draws, self._amplitude)
        low, high = field.amin((-2, -1), keepdim=True), field.amax((-2, -1), keepdim=True)
        return field > (low + high) / 2


class Landscape:
    """Neutral landscapes, cut like measured maps: at `sensor.simulation.raster.threshold`.

    A mission is a window of a Gaussian random field four times as long and wide. The field is
    the sum of a coarse part with the power spectrum k^-a and a fine one with k^-1. Each mission
    draws the exponent a, from 2 to 3.5, and the fine part's share of the variance within a
    window, from 0 to 0.7. Windows of measured ground lie in these ranges.

    Raises:
        ConfigError: the threshold is not a percentile.
    """

    def __init__(self, config: Config, device: torch.device, split: str) -> None:
        extent = (config.environment.x_dim, config.environment.y_dim)
        tiles = [_TILES * side / config.experiment.constraints.spacing for side in extent]
        self.shape = config.geometry.map_shape
        self.threshold = config.sensor.simulation.raster.threshold
        if not isinstance(self.threshold, str):
            raise ConfigError(
                f"sensor.simulation.raster.threshold: {self.threshold:g} must be a percentile "
                "such as p60 for landscapes, which have no unit"
            )
        self._device, self._side = device, (tiles[0], tiles[1])
        self._window = (math.ceil(tiles[0]), math.ceil(tiles[1]))
        self._field = (_FIELD * self._window[0], _FIELD * self._window[1])
        self.bytes_per_mission = 30 * max(math.prod(self.shape), math.prod(self._field))
        waves = wavenumbers(self._field, (1, 1)) * max(tiles)  # in the longer side of a window
        # Variance that a wave of power 1 gives to a field; inner columns stand for k and -k. Waves
        # longer than a window do not count.
        weights = torch.full_like(waves, 2 / math.prod(self._field))
        weights[:, [0, -1]] /= 2
        weights[waves < 1] = 0
        waves[0, 0] = torch.inf  # no mean
        self._weights = weights.float().to(device)
        self._log_waves = waves.log().float().to(device)
        self._fine = self._spectrum(torch.tensor(_FINE_EXPONENT, device=device))

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers [num, 2 + tiles of a field] float16.

        The first two stand for the exponent and the fine share.
        """
        size = (num, _NUM_NUMBERS + math.prod(self._field))
        return torch.randn(size, generator=generator, device=self._device, dtype=torch.float16)

    def windows(self, draws: Tensor) -> Tensor:
        """Return the values of windows in the mission's cells, [E, R, C] float32."""
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
        """Return k^(-exponent) [E, …], scaled to variance 1 in waves that fit into a window."""
        power = torch.exp(-exponent * self._log_waves)
        return power / (power * self._weights).sum((-2, -1), keepdim=True)


def field_amplitude(shape: tuple[int, int], extent: tuple[float, float], exponent: float) -> Tensor:
    """Return the spectral amplitude k^(-exponent/2) of maps (R, C) of an extent [m].

    Wavenumbers k are per metre, so clusters are as wide as long. The result is 0 for the mean,
    [R, C // 2 + 1] float32; layout of `torch.fft.rfft2`.
    """
    (rows, cols), (x_dim, y_dim) = shape, extent
    k = wavenumbers(shape, (x_dim / rows, y_dim / cols)) * max(x_dim, y_dim)
    k[0, 0] = torch.inf
    return k.pow(-exponent / 2).float()


def wavenumbers(shape: tuple[int, int], cell: tuple[float, float]) -> Tensor:
    """Return the wavenumbers of fields (R, C) with the extent of a cell, per unit of it.

    They are [R, C // 2 + 1] float64; layout of `torch.fft.rfft2`.
    """
    kx = torch.fft.fftfreq(shape[0], cell[0], dtype=torch.float64)
    ky = torch.fft.rfftfreq(shape[1], cell[1], dtype=torch.float64)
    return torch.hypot(kx[:, None], ky)


def filtered(noise: Tensor, amplitude: Tensor) -> Tensor:
    """Filter white noise [E, R, C] to periodic Gaussian random fields [E, R, C] float32."""
    spectrum = torch.fft.rfft2(noise.float())
    return torch.fft.irfft2(spectrum * amplitude, s=noise.shape[-2:])


def _between(uniform: Tensor, limits: tuple[float, float]) -> Tensor:
    return limits[0] + (limits[1] - limits[0]) * uniform
