"""Error rates of the camera by altitude, and what a reading tells at these rates."""

from __future__ import annotations

import math
from itertools import pairwise
from numbers import Real
from typing import Protocol

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.parts import SENSORS, load_part
from marl_framework.kernels.cells import entropy

_KEY = "sensor.model.type"
# Limits that float32 tells from 0 and 1; beliefs are clamped long before.
_LOWEST, _HIGHEST = 1e-30, 1 - 2**-24


class Sensor(Protocol):
    """Error rates of a camera; made as `MySensor(config)`.

    Both lie between 0 and 1, and their sum below 1: a positive reading then makes interest more
    likely.
    """

    def miss(self, altitude: float) -> float:
        """Return the probability that a cell of interest is read as not, at `altitude` [m]."""
        ...

    def false_alarm(self, altitude: float) -> float:
        """Return the probability that another cell is read as of interest, at `altitude` [m]."""
        ...


class TableSensor:
    """Both rates from `sensor.model.table`, linear between its altitudes."""

    def __init__(self, config: Config) -> None:
        self._table = config.sensor.model.table

    def miss(self, altitude: float) -> float:
        """Return both rates; beyond the table the nearest altitude counts."""
        known = sorted(self._table)
        for low, high in pairwise(known):
            if low <= altitude <= high:
                share = (altitude - low) / (high - low)
                return (1 - share) * self._table[low] + share * self._table[high]
        return self._table[min(known, key=lambda h: abs(h - altitude))]

    false_alarm = miss


class ExponentialSensor:
    """Both rates a·(1 - e^(-b·h)) at altitude h, a and b of `sensor.model`."""

    def __init__(self, config: Config) -> None:
        self._model = config.sensor.model

    def miss(self, altitude: float) -> float:
        """Return both rates."""
        return self._model.coeff_a * (1 - math.exp(-self._model.coeff_b * altitude))

    false_alarm = miss


def error_rates(config: Config) -> Tensor:
    """Return the probabilities of a miss and of a false alarm at each altitude, [Z, 2] float64.

    Raises:
        ConfigError: the sensor cannot be loaded, or its rates are out of range.
    """
    name = config.sensor.model.type
    sensor: Sensor = load_part(SENSORS.get(name, name), _KEY, "config")(config)
    if not all(callable(getattr(sensor, method, None)) for method in ("miss", "false_alarm")):
        raise ConfigError(f"{_KEY}: {name} must have miss(altitude) and false_alarm(altitude)")
    rates = []
    for altitude in config.geometry.altitudes:
        at, pair = f"({altitude:g})", (sensor.miss(altitude), sensor.false_alarm(altitude))
        for method, rate in zip(("miss", "false_alarm"), pair, strict=True):
            if not isinstance(rate, Real) or not 0 < rate < 1:
                text = f"{_KEY}: {name}.{method}{at} must be a number between 0 and 1"
                raise ConfigError(f"{text}, got {rate!r:.60}")
        if sum(pair) >= 1:
            text = f"{_KEY}: {name}: miss{at} + false_alarm{at} must be below 1"
            raise ConfigError(f"{text}, got {sum(pair):g}")
        rates.append([float(rate) for rate in pair])
    return torch.tensor(rates, dtype=torch.float64).clamp(_LOWEST, _HIGHEST)


def reading_odds(rates: Tensor) -> Tensor:
    """Return P(reading | of interest) / P(reading | not) of a positive and a negative reading.

    Args:
        rates: probabilities of a miss and of a false alarm, [..., 2], as the result.
    """
    miss, false_alarm = rates.unbind(-1)
    return torch.stack(((1 - miss) / false_alarm, miss / (1 - false_alarm)), -1)


def reading_shift(rates: Tensor) -> Tensor:
    """Return how far a positive reading raises a belief of 0.5, and a negative one lowers it.

    Args:
        rates: as of `reading_odds`, [..., 2], as the result.
    """
    return 0.5 - _wrong(rates)


def entropy_left(rates: Tensor) -> Tensor:
    """Return the expected entropy of a belief of 0.5 after a reading [bit], of rates [..., 2]."""
    miss, false_alarm = rates.unbind(-1)
    positive = (false_alarm + (1 - miss)) / 2
    after_positive, after_negative = entropy(_wrong(rates)).unbind(-1)
    return positive * after_positive + (1 - positive) * after_negative


def _wrong(rates: Tensor) -> Tensor:
    """Return the probabilities that a positive and a negative reading of a belief of 0.5 err."""
    miss, false_alarm = rates.unbind(-1)
    wrong = false_alarm / (false_alarm + (1 - miss)), miss / (miss + (1 - false_alarm))
    return torch.stack(wrong, -1)
