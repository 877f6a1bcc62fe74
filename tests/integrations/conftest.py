"""What the tests of the wrappers share."""

from __future__ import annotations

import warnings
from typing import Any

import matplotlib
import pytest

from marl_framework.integrations.rendering import Window

with warnings.catch_warnings():  # TorchRL's collectors warn of classes of their own on import
    warnings.filterwarnings("ignore", "Creating .*WeightUpdater which", DeprecationWarning)
    import torchrl.collectors  # noqa: F401


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pretend that matplotlib has windows; the pictures shown in them."""
    shown: list[Any] = []
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(Window, "show", lambda _, picture: shown.append(picture))
    return shown
