"""Fixtures of the wrappers' tests."""

from __future__ import annotations

from typing import Any

import matplotlib
import pytest

import tests.quiet_torchrl  # noqa: F401
from marl_framework.integrations.rendering import Viewer


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Images shown in windows, on a pretended display."""
    shown: list[Any] = []
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(Viewer, "show", lambda _, image: shown.append(image))
    return shown
