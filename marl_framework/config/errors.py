"""What bad input raises; imports no other module, so that every folder can use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """Bad input of the user's: the message is one printable line, whatever it quotes."""

    def __init__(self, message: str) -> None:
        printable = "".join(c if c.isprintable() else " " for c in str(message))
        super().__init__(" ".join(printable.split()))


class ConfigWarning(UserWarning):
    """Something in a configuration has no effect."""


@contextmanager
def found_at(where: str) -> Iterator[None]:
    """Let the message of a `ConfigError` begin with the key or option that the input was given by.

    Raises:
        ConfigError: what is inside raised one.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
