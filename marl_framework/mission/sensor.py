"""Error rates of the camera by altitude, and the effect of readings on beliefs."""

from __future__ import annotations

import math
from itertools import pairwise
from numbers import Real
from typing import Protocol

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.parts import SENSORS, custom_code, make_part
from marl_framework.kernels.cells import entropy

_KEY = "sensor.model.type"
# Limits that differ from 0 and 1 in float32; the clamp of beliefs is much tighter.
_LOWEST, _HIGHEST = 1e-30, 1 - 2**-24


class Sensor(Protocol):
    """Interface of the camera's error rates; created as `MySensor(config)`.

    Both rates must lie between 0 and 1 and their sum below 1, so that a positive reading raises
    the belief.
    """

    def miss(self, altitude: float) -> float:
        """Return the probability of reading a cell of interest as negative, at `altitude` [m]."""
        ...

    def false_alarm(self, altitude: float) -> float:
        """Return the probability of reading any other cell as positive, at `altitude` [m]."""
        ...


class TableSensor:
    """Equal error rates, interpolated linearly between altitudes of `sensor.model.table`."""

    def __init__(self, config: Config) -> None:
        self._table = config.sensor.model.table

    def miss(self, altitude: float) -> float:
        """Return the error rate at an altitude [m], clamped to the altitudes of the table."""
        known = sorted(self._table)
        for low, high in pairwise(known):
            if low <= altitude <= high:
                share = (altitude - low) / (high - low)
                return (1 - share) * self._table[low] + share * self._table[high]
        return self._table[min(known, key=lambda h: abs(h - altitude))]

    false_alarm = miss


class ExponentialSensor:
    """Equal error rates a·(1 - e^(-b·h)) at altitude h, with a and b from `sensor.model`."""

    def __init__(self, config: Config) -> None:
        self._model = config.sensor.model

    def miss(self, altitude: float) -> float:
        """Return the error rate at an altitude [m]."""
        return self._model.coeff_a * (1 - math.exp(-self._model.coeff_b * altitude))

    false_alarm = miss


def error_rates(config: Config) -> Tensor:
    """Return the miss and false-alarm probabilities at each altitude, [Z, 2] float64.

    Raises ConfigError if the sensor cannot be loaded or created, or a rate is out of range.
    """
    name = config.sensor.model.type
    sensor: Sensor = make_part(SENSORS, name, _KEY, config=config)
    if not all(callable(getattr(sensor, method, None)) for method in ("miss", "false_alarm")):
        raise ConfigError(f"{_KEY}: {name} must have miss(altitude) and false_alarm(altitude)")
    rates = []
    for altitude in config.geometry.altitudes:
        at = f"({altitude:g})"
        with custom_code(f"{_KEY}: {name} fails at {altitude:g} m"):
            pair = sensor.miss(altitude), sensor.false_alarm(altitude)
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
    """Return P(reading | ROI) / P(reading | not ROI), [..., 2]: positive, then negative reading.

    `rates` are miss and false-alarm probabilities, [..., 2].
    """
    miss, false_alarm = rates.unbind(-1)
    return torch.stack(((1 - miss) / false_alarm, miss / (1 - false_alarm)), -1)


def cautious_rates(rates: Tensor, caution: float | Tensor) -> Tensor:
    """Return the rates of a camera whose `reading_odds` are those of `rates` to a power.

    `rates` are miss and false-alarm probabilities, [..., 2]; `caution` is the power, a number or
    [..., 1].
    """
    if isinstance(caution, float) and caution == 1:
        return rates
    positive, negative = reading_odds(rates).pow(caution).unbind(-1)
    false_alarm = (1 - negative) / (positive - negative)
    return torch.stack((negative * (1 - false_alarm), false_alarm), -1)


def reading_shift(rates: Tensor) -> Tensor:
    """Return the rise (fall) of a belief of 0.5 after a positive (negative) reading, [..., 2].

    `rates` are miss and false-alarm probabilities, [..., 2].
    """
    return 0.5 - _posterior_error(rates)


def entropy_left(rates: Tensor) -> Tensor:
    """Return the expected entropy after one reading of a belief of 0.5 [bit]; rates [..., 2]."""
    miss, false_alarm = rates.unbind(-1)
    positive = (false_alarm + (1 - miss)) / 2
    after_positive, after_negative = entropy(_posterior_error(rates)).unbind(-1)
    return positive * after_positive + (1 - positive) * after_negative


def _posterior_error(rates: Tensor) -> Tensor:
    """Return the error probabilities of positive and negative readings at a belief of 0.5."""
    miss, false_alarm = rates.unbind(-1)
    wrong = false_alarm / (false_alarm + (1 - miss)), miss / (miss + (1 - false_alarm))
    return torch.stack(wrong, -1)
