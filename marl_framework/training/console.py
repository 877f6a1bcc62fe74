"""Display the progress of a training run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from marl_framework.runs.log import LoggedStream, RunLog

_FORMATS = {"return": ".3f", "validation entropy": ".4f", "transitions/s": ",.0f"}
_LINES = 20
"""Number of plain lines per training; slow trainings print more, see `_SECONDS`."""
_SECONDS = 10.0
"""Time after which a finished step prints a plain line [s]."""


class ProgressView:
    """Context manager that shows training step, metrics, speed, stage shares and time left.

    A terminal shows a block that is redrawn in place; other streams get plain lines, as does the
    log of a run in both cases. On exit, also after an exception, the last numbers are shown.

    `total_steps` are those of the whole training, `first_step` of them made by earlier processes.
    The `stream` is standard output by default; `clock` returns the time [s].
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._first = self._step = self._printed_step = first_step
        self._stream = stream if stream is not None else sys.stdout
        self._clock = clock
        self._begin, self._printed_at = clock(), -math.inf
        self._texts: dict[str, str] = {}
        self._fresh = False  # whether some numbers are not printed yet
        self._live: Live | None = None
        self._log: RunLog | None = None  # log to write plain lines to, next to a live block
        self._block = ExitStack()

    def update(
        self,
        step: int,
        numbers: Mapping[str, float | None] | None = None,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """Show a finished training step; absent numbers and None keep their last value.

        `numbers` are the `return` of the last episodes, `validation entropy` [bit] and
        `transitions/s`; `shares` are shares of the time (0 … 1) by stage.
        """
        self._step, self._fresh = step, True
        present = {name: value for name, value in (numbers or {}).items() if value is not None}
        self._texts |= {name: format(value, _FORMATS[name]) for name, value in present.items()}
        if shares:
            self._texts["time"] = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        few_lines = (step - self._printed_step) * _LINES >= self._total
        if few_lines or self._clock() - self._printed_at >= _SECONDS:
            self._print_line()

    def print(self, text: str) -> None:
        """Print a separate line; on a terminal above the live block."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._write(text)

    def __enter__(self) -> Self:
        self._begin = self._clock()
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            screen = self._stream
            if isinstance(self._stream, LoggedStream):
                screen, self._log = self._stream.screen, self._stream.log
            console = Console(file=screen)
            self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)
            self._block.enter_context(self._live)  # redirects print to lines above the block
            if self._log is not None:
                self._block.enter_context(self._log.copying())
        return self

    def __exit__(self, *_: object) -> None:
        if self._fresh:
            self._print_line()
        self._live = None
        self._block.close()  # draws the last numbers, which stay on the screen

    def _print_line(self) -> None:
        self._fresh, self._printed_step, self._printed_at = False, self._step, self._clock()
        fields = " | ".join(f"{name} {text}" for name, text in self._fields().items())
        self._write(f"step {self._step}/{self._total} | {fields}")

    def _write(self, line: str) -> None:
        """Print a line; next to a live block, write the line only to the log."""
        if self._live is None:
            print(line, file=self._stream, flush=True)
        elif self._log is not None:
            self._log.write(f"{line}\n")

    def _fields(self) -> dict[str, str]:
        """Return the known numbers in a fixed order, and the estimated time left."""
        made, left = self._step - self._first, max(self._total - self._step, 0)
        eta = "?"
        if made > 0:
            seconds = round((self._clock() - self._begin) / made * left)
            eta = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        known = {name: self._texts[name] for name in (*_FORMATS, "time") if name in self._texts}
        return {**known, "ETA": eta}

    def _render(self) -> Group:
        """Return the live block."""
        head = Table.grid(padding=(0, 1))
        head.add_row(
            f"training step {self._step}/{self._total}",
            ProgressBar(total=max(self._total, 1), completed=self._step, width=30),
        )
        table = Table.grid(padding=(0, 2))
        for name, text in self._fields().items():
            table.add_row(name, text)
        return Group(head, table)
