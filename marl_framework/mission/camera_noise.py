"""Caution learned from readings: their noise shows how often the camera errs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from marl_framework.kernels.cells import entropy
from marl_framework.mission.camera import Camera
from marl_framework.mission.state import MissionState

_LAGS = (1, 2, 4)  # distances of compared cells
SUMS = (len(_LAGS) + 1, 2)
"""Shape of the sums over the readings of one altitude."""
_LEAST_GROWTH, _SMOOTH_GROWTH = 1.3, 2.0  # of differences between cells at twice the distance
_SPREAD = 0.05  # standard deviation of real error rates around the assumed ones
_LOWEST, _HIGHEST = 1e-3, 0.49  # limits of assumed and learned error rates


class CameraNoise:
    """Sums over readings that tell the error rate of the camera, by mission and altitude.

    Cells side by side are mostly of one kind, so their readings differ mostly where one is wrong.
    Readings d cells apart have the correlation (1 - 2e)² - b·d^h, with the error rate e and the
    borders b; h is 1 for smooth borders and less for rough ones. Three distances determine e, as
    the nugget of a variogram (Matheron 1963).

    `sums`, [E, Z, *SUMS] float64, or [E, N, Z, *SUMS] to learn of each UAV by itself, replace new
    sums of E `missions`; `add` changes them.
    """

    def __init__(self, camera: Camera, missions: int = 0, sums: Tensor | None = None) -> None:
        self._camera, rates = camera, camera.error_rates.double()
        self._certain = (1 - 2 * rates).unbind(-1)  # of cells of interest, and of others
        shape = missions, len(rates), *SUMS
        self.sums = rates.new_zeros(shape) if sums is None else sums

    def add(self, state: MissionState, taken: Tensor) -> None:
        """Add the latest readings of the UAVs that took one, [E, N] bool."""
        sums = self._sums_of(state, taken)
        self.sums += sums if self.sums.dim() == sums.dim() else sums.sum(1)

    def _sums_of(self, state: MissionState, taken: Tensor) -> Tensor:
        """Return the sums of the latest readings, [E, N, Z, *SUMS]."""
        readings = state.readings * taken[..., None, None]
        if state.inside.numel():  # cells outside a field are read without noise
            cells = self._camera.window_index(self._camera.footprint(state.positions))
            inside = state.inside.flatten(1).unsqueeze(1).expand(-1, cells.shape[1], -1)
            readings *= inside.gather(2, cells).view_as(readings)
        cells = torch.stack((_sum(readings), _sum(readings.abs())), -1)
        sums = torch.stack([*(_products(readings, lag) for lag in _LAGS), cells], -2)
        levels = one_hot(state.positions[..., 2], self.sums.shape[-3])
        return (levels[..., None, None] * sums.unsqueeze(-3)).double()

    def assumed_rates(self) -> Tensor:
        """Return the error rates that readings should have, [..., Z] float64.

        Rates of cells of interest and of others may differ, so they depend on the share of these
        among the cells, as the mean reading tells it.
        """
        inside, outside = self._certain
        total, cells = self.sums[..., -1, :].unbind(-1)
        mean = total / cells.clamp(min=1)
        share = ((mean + outside) / (inside + outside).clamp(min=1e-9)).clamp(0, 1)
        rates = (1 - (outside**2).lerp(inside**2, share).sqrt()) / 2
        return rates.clamp(_LOWEST, _HIGHEST)

    def error_rates(self) -> tuple[Tensor, Tensor]:
        """Return error rates and their weights relative to the assumed ones, [..., Z] float64."""
        products, pairs = self.sums[..., :-1, :].unbind(-1)
        near, far, farther = (products / pairs.clamp(min=1)).unbind(-1)
        change = (near - far).clamp(min=1e-6)
        growth = ((far - farther) / change).clamp(_LEAST_GROWTH, _SMOOTH_GROWTH)
        error = (1 - (near + change / (growth - 1)).clamp(0, 1).sqrt()) / 2
        # Of the extrapolation, for smooth borders: (2·near - far) has five times the variance.
        certain = 1 - 2 * self.assumed_rates()
        variance = 5 * (1 - certain**4) / (pairs[..., 0].clamp(min=1) * (4 * certain).square())
        comparable = (pairs > 0).all(-1)  # small footprints lack cells that are far apart
        weight = comparable * _SPREAD**2 / (_SPREAD**2 + variance)
        return error, weight

    def caution(self) -> Tensor:
        """Return the `mapping.caution` that the readings suggest, [...]; 1 if they have no noise.

        It is the mean over altitudes, weighted by the information that the readings should have.
        """
        assumed, (error, weight) = self.assumed_rates(), self.error_rates()
        learned = assumed.lerp(error, weight).clamp(_LOWEST, _HIGHEST)
        power = learned.logit() / assumed.logit()
        information = self.sums[..., 0, 1] * weight * (1 - entropy(assumed))
        total = information.sum(-1)
        mean = (power * information).sum(-1) / total.clamp(min=1e-9)
        return mean.where(total > 0, 1.0).clamp(max=1).float()


def _products(readings: Tensor, lag: int) -> Tensor:
    """Return the sum of products of readings `lag` cells apart, and their number, [..., 2]."""
    rows = readings[..., lag:, :] * readings[..., :-lag, :]
    cols = readings[..., lag:] * readings[..., :-lag]
    total, pairs = _sum(rows) + _sum(cols), _sum(rows.abs()) + _sum(cols.abs())
    return torch.stack((total, pairs), -1)


def _sum(values: Tensor) -> Tensor:
    return values.sum((-2, -1), dtype=torch.int32)  # much faster than in float64
