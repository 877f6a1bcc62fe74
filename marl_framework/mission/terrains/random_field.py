"""Ground above the middle of a Gaussian random field."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.model import Config


class RandomField:
    """Gaussian random fields with a power-law spectrum, cut at half of their range.

    Args:
        config: `sensor.simulation.cluster_radius` is the exponent of the spectrum.
        device: device of draws and ground truths.
        split: not used; splits differ by their seeds.
    """

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
        return above_half_range(filtered(draws, self._amplitude))


def field_amplitude(shape: tuple[int, int], extent: tuple[float, float], exponent: float) -> Tensor:
    """Return the spectral amplitude k^(-exponent/2) of a Gaussian random field.

    Args:
        shape: (R, C).
        extent: size of the map [m]; wavenumbers k are per metre, so clusters are as wide as long.
        exponent: the power spectrum falls as k^(-exponent).

    Returns:
        [R, C // 2 + 1] float32, 0 for the mean; layout of `torch.fft.rfft2`.
    """
    (rows, cols), (x_dim, y_dim) = shape, extent
    k = wavenumbers(shape, (x_dim / rows, y_dim / cols)) * max(x_dim, y_dim)
    k[0, 0] = torch.inf
    return k.pow(-exponent / 2).float()


def wavenumbers(shape: tuple[int, int], cell: tuple[float, float]) -> Tensor:
    """Return the wavenumbers of a field, [R, C // 2 + 1] float64; layout of `torch.fft.rfft2`.

    Args:
        shape: (R, C).
        cell: extent of a cell; wavenumbers are per unit of it.
    """
    kx = torch.fft.fftfreq(shape[0], cell[0], dtype=torch.float64)
    ky = torch.fft.rfftfreq(shape[1], cell[1], dtype=torch.float64)
    return torch.hypot(kx[:, None], ky)


def filtered(noise: Tensor, amplitude: Tensor) -> Tensor:
    """Filter white noise [E, R, C] to periodic Gaussian random fields [E, R, C] float32."""
    spectrum = torch.fft.rfft2(noise.float())
    return torch.fft.irfft2(spectrum * amplitude, s=noise.shape[-2:])


def above_half_range(field: Tensor) -> Tensor:
    """Return the cells above the middle of each field's range, [E, R, C] bool."""
    low, high = field.amin((-2, -1), keepdim=True), field.amax((-2, -1), keepdim=True)
    return field > (low + high) / 2
