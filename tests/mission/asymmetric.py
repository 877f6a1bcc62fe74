"""A sensor that misses more than it falsely alarms."""

from __future__ import annotations

from marl_framework.config.model import Config


class Asymmetric:
    def __init__(self, config: Config) -> None:
        self.rise = 0.02

    def miss(self, altitude: float) -> float:
        return self.rise * altitude

    def false_alarm(self, altitude: float) -> float:
        return 0.01 + 0.002 * altitude


ASYMMETRIC = {"model": {"type": f"{__name__}.Asymmetric"}}
"""Section `sensor` of a configuration that names it."""
