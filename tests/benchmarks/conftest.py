"""Fixtures of the tests of benchmarks."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from benchmarks.helpers import harness, processes
from benchmarks.speed.transformations_backends import Recorded
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from tests.benchmarks.running import BANDWIDTH, FAR, FLOAT32


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the copies that measure the memory bandwidth."""
    monkeypatch.setattr(harness, "memory_bandwidth", lambda _: BANDWIDTH)


@pytest.fixture
def refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a benchmark that must end with bad input and one line, however busy the machine is."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return lambda module, *words: refused(module.main, [str(word) for word in words])


@pytest.fixture
def here(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call functions in this process instead of new ones, whose start takes seconds."""

    def in_turn(work, arguments):
        return [work(*each) for each in arguments]

    monkeypatch.setattr(processes, "run_at_once", in_turn)
    monkeypatch.setattr(processes, "wait_for_others", lambda: None)
    monkeypatch.setattr(processes, "repeat_until_all_are_here", lambda work: work())


@pytest.fixture(scope="session")
def config() -> Config:
    return load_config("params_test.yaml", [FLOAT32])


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """Three missions whose UAVs hear each other."""
    return Recorded.of(load_config("params_test.yaml", [FAR]), 3)
