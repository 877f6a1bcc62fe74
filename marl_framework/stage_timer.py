"""Times the stages of a computation, on a GPU without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

OTHER = "other"
"""Share of the time outside all stages."""


class StageTimer:
    """Adds up the time of named stages, and counts what was done in it.

        timer = StageTimer(device)
        with timer("rollout"):
            ...
        timer.count("transitions", 3840)
        print(timer.shares(), timer.rates())
        timer.reset()

    On a GPU a stage is timed by events on its stream, so that entering and leaving one never
    waits; `seconds`, `shares` and `rates` wait for the work given so far. Stages follow one
    another and do not nest.

    Args:
        device: where the work is done.
        clock: the wall clock [s].
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device = device
        self._clock = clock
        self._open: str | None = None
        self._spans: list[tuple[str, Any, Any]] = []
        self._spare_events: list[Any] = []
        self._seconds: dict[str, float] = {}
        self._earlier_seconds: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._earlier_counts: dict[str, float] = {}
        self._first_start = self._start = clock()

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
        self._counts[name] = self._counts.get(name, 0) + number

    def wall(self, *, total: bool = False) -> float:
        """Wall time [s] since `reset`, or in total; waits for the device."""
        self._settle()
        return self._clock() - (self._first_start if total else self._start)

    def seconds(self, *, total: bool = False) -> dict[str, float]:
        """Seconds in each stage since `reset`, or in total, in the order of first use."""
        self._settle()
        return _added(self._earlier_seconds if total else {}, self._seconds)

    def shares(self, *, total: bool = False) -> dict[str, float]:
        """Share of the wall time in each stage, with the rest as `other`; the sum is 1."""
        seconds = self.seconds(total=total)
        inside = sum(seconds.values())
        wall = max(self.wall(total=total), inside)
        if wall <= 0:
            return {}
        shares = {stage: value / wall for stage, value in seconds.items()}
        return {**shares, OTHER: 1 - inside / wall}

    def rates(self, *, total: bool = False) -> dict[str, float]:
        """Counts per second of wall time since `reset`, or in total."""
        counts = _added(self._earlier_counts if total else {}, self._counts)
        wall = self.wall(total=total)
        return {name: number / wall if wall > 0 else 0.0 for name, number in counts.items()}

    def reset(self) -> None:
        """Start a new interval; totals stay."""
        self._settle()
        self._earlier_seconds = _added(self._earlier_seconds, self._seconds)
        self._earlier_counts = _added(self._earlier_counts, self._counts)
        self._seconds, self._counts = {}, {}
        self._start = self._clock()

    def _mark(self) -> Any:
        """Return a mark of this moment: a time on the host, an event on a GPU's stream."""
        if self._device.type != "cuda":
            return self._clock()
        if self._spare_events:
            event = self._spare_events.pop()
        else:
            event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _settle(self) -> None:
        """Turn finished spans into seconds."""
        on_gpu = self._device.type == "cuda"
        if on_gpu and self._spans:
            self._spans[-1][2].synchronize()
        for stage, begin, end in self._spans:
            span = begin.elapsed_time(end) / 1000 if on_gpu else end - begin
            self._seconds[stage] = self._seconds.get(stage, 0.0) + span
            if on_gpu:
                self._spare_events += (begin, end)
        self._spans = []


def _added(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
