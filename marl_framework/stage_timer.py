"""Time the stages of a computation, without synchronising with a GPU at each stage."""

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
_new_sums = partial(defaultdict[str, float], float)


class StageTimer:
    """Sums the time of named stages, `with timer(stage)`, and counts work such as transitions.

    On a GPU, events on the current stream time each stage without waiting. `wall`, `seconds`,
    `shares` and `rates` wait for all submitted work. Stages do not nest. `clock` is in seconds.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device, self._clock = device, clock
        self._open: str | None = None
        self._spans: list[tuple[str, Any, Any]] = []
        self._seconds = _new_sums(), _new_sums()  # since `reset`, and in total
        self._counts = _new_sums()  # since `reset`
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
        self._counts[name] += number

    def wall(self, *, total: bool = False) -> float:
        """Return the wall time [s] since `reset`, or in total; wait for the device."""
        self._collect_spans()
        return self._clock() - self._starts[total]

    def seconds(self, *, total: bool = False) -> dict[str, float]:
        """Return the seconds in each stage since `reset`, or in total, in order of first use."""
        self._collect_spans()
        return dict(self._seconds[total])

    def shares(self, *, total: bool = False) -> dict[str, float]:
        """Return each stage's share of the wall time, and the rest as `other`; the sum is 1."""
        seconds = self.seconds(total=total)
        in_stages = sum(seconds.values())
        wall = max(self.wall(total=total), in_stages)
        if wall <= 0:
            return {}
        shares = {stage: value / wall for stage, value in seconds.items()}
        return {**shares, OTHER: 1 - in_stages / wall}

    def rates(self) -> dict[str, float]:
        """Return counts per second of wall time since `reset`."""
        wall = self.wall()
        return {name: n / wall if wall > 0 else 0.0 for name, n in self._counts.items()}

    def reset(self) -> None:
        """Start a new interval; keep the totals."""
        self._collect_spans()
        self._seconds[0].clear()
        self._counts.clear()
        self._starts[0] = self._clock()

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _collect_spans(self) -> None:
        """Wait for the device and add the recorded spans to the sums."""
        on_gpu = self._device.type == "cuda"
        if on_gpu and self._spans:
            self._spans[-1][2].synchronize()
        for stage, begin, end in self._spans:
            for sums in self._seconds:
                sums[stage] += begin.elapsed_time(end) / 1000 if on_gpu else end - begin
        self._spans = []
