"""Missions as environments for other libraries; each library has its own module and extra."""

from __future__ import annotations


def missing_extra(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that names the extra to install."""
    library = (error.name or extra).partition(".")[0]
    return ModuleNotFoundError(
        f"marl_framework.integrations.{extra} requires {library}, which is not installed; "
        f"pip install 'marl_framework[{extra}]'",
        name=library,
    )
