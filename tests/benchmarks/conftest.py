"""Fixtures of the tests of benchmarks."""

from __future__ import annotations

import pytest
import torch

from benchmarks.helpers import harness, processes
from benchmarks.speed.transformations_backends import Recorded
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from tests.benchmarks.running import BANDWIDTH, FAR, FLOAT32


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the copies that measure the memory bandwidth, and use one thread."""
    monkeypatch.setattr(harness, "memory_bandwidth", lambda _: BANDWIDTH)
    torch.set_num_threads(1)  # compiled loops take all cores at their first call


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
