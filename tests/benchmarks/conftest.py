"""What the tests of the benchmarks share."""

from __future__ import annotations

import pytest
import torch

from benchmarks.helpers import harness
from benchmarks.speed import rollout
from benchmarks.speed.transformations_backends import Recorded
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from tests.benchmarks.running import BANDWIDTH, FAR, FLOAT32


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a gigabyte is not copied, no process is started: tests of their own look at those."""
    monkeypatch.setattr(harness, "memory_bandwidth", lambda _: BANDWIDTH)
    monkeypatch.setattr(rollout, "in_fresh_process", lambda work: work())
    torch.set_num_threads(1)  # compiled loops take all cores when they are first called


@pytest.fixture(scope="session")
def config() -> Config:
    return load_config("params_test.yaml", [FLOAT32])


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """Three missions whose UAVs hear each other."""
    return Recorded.of(load_config("params_test.yaml", [FAR]), 3)
