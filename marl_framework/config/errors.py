"""Errors and warnings about invalid input. This module imports nothing from the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """Invalid input; the message is always one printable line."""

    def __init__(self, message: str) -> None:
        printable = "".join(c if c.isprintable() else " " for c in str(message))
        super().__init__(" ".join(printable.split()))


class ConfigWarning(UserWarning):
    """Some part of a configuration has no effect."""


@contextmanager
def found_at(where: str) -> Iterator[None]:
    """Prefix the message of a `ConfigError` with the key or option of the invalid input.

    Raises ConfigError if the body raised a `ConfigError`.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
