"""Trainings of a few steps."""

from __future__ import annotations

from benchmarks.helpers import short_training


def test_the_last_fifth_is_at_least_one_value():
    assert short_training.last_fifth([1.0, 2.0]) == 2.0
    assert short_training.last_fifth([float(n) for n in range(10)]) == 8.5
