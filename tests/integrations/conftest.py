"""What the tests of the wrappers share."""

from __future__ import annotations

from typing import Any

import matplotlib
import pytest

import tests.quiet_torchrl  # noqa: F401
from marl_framework.integrations.rendering import Window


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pretend that matplotlib has windows; the pictures shown in them."""
    shown: list[Any] = []
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(Window, "show", lambda _, picture: shown.append(picture))
    return shown
