"""Times the stages of a computation, on a GPU without waiting for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

OTHER = "other"
"""Name of the time outside all stages."""
_sums = partial(defaultdict[str, float], float)


class StageTimer:
    """Adds up the time of named stages, `with timer(stage)`, and counts the work that was done.

    On a GPU events on its stream time a stage, without waiting; `seconds`, `shares` and `rates`
    wait for the work given so far. Stages do not nest. `clock` is the wall clock [s].
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device, self._clock = device, clock
        self._open: str | None = None
        self._spans: list[tuple[str, Any, Any]] = []
        self._seconds = _sums(), _sums()  # since `reset`, and in total
        self._counts = _sums(), _sums()
        self._starts = [clock()] * 2

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a stage."""
        if self._open is not None:
            raise RuntimeError(f"stage {stage!r} starts inside stage {self._open!r}")
        self._open = stage
        begin = self._mark()
        try:
            yield
        finally:
            self._spans.append((stage, begin, self._mark()))
            self._open = None

    def count(self, name: str, number: float) -> None:
        """Add to a throughput counter, such as transitions."""
        for sums in self._counts:
            sums[name] += number

    def wall(self, *, total: bool = False) -> float:
        """Return the wall time [s] since `reset`, or in total; wait for the device."""
        self._settle()
        return self._clock() - self._starts[total]

    def seconds(self, *, total: bool = False) -> dict[str, float]:
        """Return the seconds in each stage since `reset`, or in total, in order of first use."""
        self._settle()
        return dict(self._seconds[total])

    def shares(self, *, total: bool = False) -> dict[str, float]:
        """Return shares of the wall time in each stage, and the rest as `other`; the sum is 1."""
        seconds = self.seconds(total=total)
        inside = sum(seconds.values())
        wall = max(self.wall(total=total), inside)
        if wall <= 0:
            return {}
        shares = {stage: value / wall for stage, value in seconds.items()}
        return {**shares, OTHER: 1 - inside / wall}

    def rates(self, *, total: bool = False) -> dict[str, float]:
        """Return counts per second of wall time since `reset`, or in total."""
        wall = self.wall(total=total)
        return {name: n / wall if wall > 0 else 0.0 for name, n in self._counts[total].items()}

    def reset(self) -> None:
        """Start a new interval; totals stay."""
        self._settle()
        self._seconds[0].clear()
        self._counts[0].clear()
        self._starts[0] = self._clock()

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _settle(self) -> None:
        """Turn finished spans into seconds."""
        on_gpu = self._device.type == "cuda"
        if on_gpu and self._spans:
            self._spans[-1][2].synchronize()
        for stage, begin, end in self._spans:
            for sums in self._seconds:
                sums[stage] += begin.elapsed_time(end) / 1000 if on_gpu else end - begin
        self._spans = []
