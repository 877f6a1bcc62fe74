"""Progress of a training run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

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

_LINES = 20  # plain lines come every 1/20 of the training …
_SECONDS = 10.0  # … or after so many seconds, whichever is first


class ProgressView:
    """Shows training step, return, validation entropy, speed, stage shares and time left.

    Use it as a context manager. Where the stream is a terminal, a block is redrawn in place and
    the last one stays; elsewhere lines are printed, the last known numbers last. Both come out
    before an exception passes. The log of a run gets lines in both cases.

    Args:
        total_steps: training steps of the whole training.
        first_step: steps made before, by an earlier process.
        stream: where to; standard output by default.
        clock: the wall clock [s].
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._first = self._step = first_step
        self._stream = stream if stream is not None else sys.stdout
        self._clock = clock
        self._begin = clock()
        self._return: float | None = None
        self._entropy: float | None = None
        self._speed: float | None = None
        self._shares: dict[str, float] = {}
        self._printed_step = first_step
        self._printed_at = self._begin
        self._printed_any = False
        self._fresh = False  # numbers that no line has shown yet
        self._live: Live | None = None
        self._log: RunLog | None = None  # where the screen shows a block
        self._block = ExitStack()

    def update(
        self,
        step: int,
        *,
        episode_return: float | None = None,
        validation_entropy: float | None = None,
        transitions_per_second: float | None = None,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """Report a finished training step; arguments that are None keep their last value.

        Args:
            step: training steps made so far.
            episode_return: mean return of the last episodes.
            validation_entropy: of the last validation [bit per cell].
            transitions_per_second: speed.
            shares: stage → share of the time, 0 … 1.
        """
        self._step, self._fresh = step, True
        if episode_return is not None:
            self._return = episode_return
        if validation_entropy is not None:
            self._entropy = validation_entropy
        if transitions_per_second is not None:
            self._speed = transitions_per_second
        if shares is not None:
            self._shares = dict(shares)
        if self._is_due():
            self._print_line()

    def print(self, text: str) -> None:
        """Print a line of its own; on a terminal above the live block."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            self._log_line(text)
        else:
            print(text, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        self._begin = self._printed_at = self._clock()
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            screen = self._stream
            if isinstance(self._stream, LoggedStream):
                screen, self._log = self._stream.screen, self._stream.log
            console = Console(file=screen)
            self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)
            self._block.enter_context(self._live)  # takes sys.stdout: print shows lines above it
            if self._log is not None:
                self._block.enter_context(self._log.copying())
        return self

    def __exit__(self, *_: object) -> None:
        if self._fresh:
            self._print_line()
        self._live = None
        self._block.close()  # draws the last numbers and leaves them there

    def _is_due(self) -> bool:
        made = self._step - self._printed_step
        return (
            not self._printed_any
            or made * _LINES >= self._total
            or self._clock() - self._printed_at >= _SECONDS
        )

    def _print_line(self) -> None:
        self._printed_any, self._fresh = True, False
        self._printed_step, self._printed_at = self._step, self._clock()
        if self._live is not None:
            self._log_line(self._line())
        else:
            print(self._line(), file=self._stream, flush=True)

    def _log_line(self, text: str) -> None:
        if self._log is not None:
            self._log.write(f"{text}\n")

    def _line(self) -> str:
        """All numbers on one line."""
        fields = " | ".join(f"{name} {value}" for name, value in self._fields())
        return f"step {self._step}/{self._total} | {fields}"

    def _fields(self) -> list[tuple[str, str]]:
        """Names and texts of the numbers known so far."""
        fields = []
        if self._return is not None:
            fields.append(("return", f"{self._return:.3f}"))
        if self._entropy is not None:
            fields.append(("validation entropy", f"{self._entropy:.4f}"))
        if self._speed is not None:
            fields.append(("transitions/s", f"{self._speed:,.0f}"))
        if self._shares:
            shares = ", ".join(f"{stage} {share:.0%}" for stage, share in self._shares.items())
            fields.append(("time", shares))
        fields.append(("ETA", self._time_left()))
        return fields

    def _time_left(self) -> str:
        """Time left [h:mm:ss] at the mean speed so far."""
        made = self._step - self._first
        if made <= 0:
            return "?"
        left = (self._clock() - self._begin) / made * max(self._total - self._step, 0)
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d}"

    def _render(self) -> Group:
        """The live block."""
        head = Table.grid(padding=(0, 1))
        head.add_row(
            f"training step {self._step}/{self._total}",
            ProgressBar(total=max(self._total, 1), completed=self._step, width=30),
        )
        table = Table.grid(padding=(0, 2))
        for name, value in self._fields():
            table.add_row(name, value)
        return Group(head, table)
