"""What bad input raises; imports nothing, so that every folder can use it."""

from __future__ import annotations


class ConfigError(ValueError):
    """Bad input of the user's: the message is one printable line, whatever it quotes."""

    def __init__(self, message: str) -> None:
        printable = "".join(c if c.isprintable() else " " for c in str(message))
        super().__init__(" ".join(printable.split()))


class ConfigWarning(UserWarning):
    """Something in a configuration has no effect."""
