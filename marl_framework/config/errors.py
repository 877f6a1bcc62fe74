"""Errors and warnings about bad input; imports no other module of the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """Bad input; the message is one printable line, whatever it quotes."""

    def __init__(self, message: str) -> None:
        printable = "".join(c if c.isprintable() else " " for c in str(message))
        super().__init__(" ".join(printable.split()))


class ConfigWarning(UserWarning):
    """Part of a configuration has no effect."""


@contextmanager
def found_at(where: str) -> Iterator[None]:
    """Prefix the message of a `ConfigError` with the key or option of the bad input.

    Raises:
        ConfigError: the body raised one.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
