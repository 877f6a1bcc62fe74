from __future__ import annotations

import math

import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.mission.camera import Camera
from marl_framework.mission.sensor import ExponentialSensor, TableSensor, error_rates
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import small_config


def test_a_table_is_linear_in_between_and_symmetric():
    sensor = TableSensor(small_config(max_altitude=25.0))
    assert sensor.miss(7.5) == sensor.false_alarm(7.5) == pytest.approx((0.01 + 0.265) / 2)
    assert sensor.miss(25.0) == pytest.approx(0.46)


def test_the_exponential_sensor_follows_its_formula():
    model = {"type": "exponential", "coeff_a": 0.4, "coeff_b": 0.1}
    sensor = ExponentialSensor(small_config(sensor={"model": model}))
    assert sensor.miss(10.0) == sensor.false_alarm(10.0) == pytest.approx(0.4 * (1 - math.exp(-1)))


def test_a_sensor_of_a_users_own_is_asked_at_each_altitude():
    rates = error_rates(small_config(sensor=ASYMMETRIC))
    assert rates.flatten().tolist() == pytest.approx([0.1, 0.02, 0.2, 0.03, 0.3, 0.04])


class Constant:
    rates: tuple[object, object] = (0.1, 0.1)

    def __init__(self, config: object) -> None:
        pass

    def miss(self, altitude: float) -> object:
        return self.rates[0]

    def false_alarm(self, altitude: float) -> object:
        return self.rates[1]


class Missing(Constant):
    false_alarm = None


@pytest.mark.parametrize(
    ("rates", "method"),
    [
        ((0.0, 0.1), r"miss\(5\)"),
        ((0.1, 1.0), r"false_alarm\(5\)"),
        ((math.nan, 0.1), r"miss\(5\).*nan"),
        ((None, 0.1), r"miss\(5\).*None"),
        ((torch.tensor(0.1), 0.1), r"miss\(5\).*tensor"),
        ((0.6, 0.4), r"miss\(5\) \+ false_alarm\(5\)"),
    ],
)
def test_impossible_rates_are_refused_in_one_line(rates, method, monkeypatch):
    monkeypatch.setattr(Constant, "rates", rates)
    config = small_config(sensor={"model": {"type": f"{__name__}.Constant"}})
    with pytest.raises(ConfigError, match=rf"^sensor\.model\.type: .*Constant.*{method}.*$"):
        Camera(config, "cpu")


def test_a_sensor_without_false_alarms_is_refused():
    config = small_config(sensor={"model": {"type": f"{__name__}.Missing"}})
    with pytest.raises(ConfigError, match=r"^sensor\.model\.type: .*Missing.*false_alarm"):
        Camera(config, "cpu")


@pytest.mark.parametrize("rates", [(1e-300, 1e-300), (1 - 1e-12, 1e-13), (1e-13, 1 - 1e-12)])
def test_rates_next_to_0_and_1_stay_finite(rates, monkeypatch):
    monkeypatch.setattr(Constant, "rates", rates)
    camera = Camera(small_config(sensor={"model": {"type": f"{__name__}.Constant"}}), "cpu")
    assert camera.odds.isfinite().all()
    assert (camera.odds > 0).all()
    limits = (camera.optics.flip_below[0].double() + 2**15) / 2**16
    assert limits.tolist() == pytest.approx([rates[1], rates[0]], abs=2**-16)
