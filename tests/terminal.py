"""A clock and a terminal, for the tests."""

import io


class Clock:
    """A clock that only tests move [s]."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """Text that says that it is shown."""

    def isatty(self) -> bool:
        return True
