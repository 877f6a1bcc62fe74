"""Maps and deployments that the tests share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deployment.flying import deploy, write_utm


@pytest.fixture
def fly(tmp_path: Path) -> Callable[..., int]:
    return functools.partial(deploy, tmp_path)


@pytest.fixture(scope="session")
def utm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_utm(tmp_path_factory.mktemp("maps"))


@pytest.fixture(scope="session")
def flown(tmp_path_factory: pytest.TempPathFactory, utm: Path) -> Path:
    folder = tmp_path_factory.mktemp("flown")
    assert deploy(folder, utm, "deployment.speed=4", "experiment.missions.n_agents=3") == 0
    return folder
