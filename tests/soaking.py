"""Parameters of tests that take too long for `make test`."""

from __future__ import annotations

from typing import Any

import pytest


def in_soak(*values: Any) -> list[Any]:
    """Return parameters that only `make soak` runs; tuples are several arguments."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.soak)
        for value in values
    ]
