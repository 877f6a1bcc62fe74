"""Profile a few training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile, schedule, supported_activities

_ROWS = 10


@contextmanager
def profile_steps(n: int, folder: Path | str) -> Iterator[Callable[[], None]]:
    """Record n training steps with PyTorch's profiler; yield a function to call after each step.

    The first step warms up and is not recorded. After n more steps, or at the end of the block,
    `folder/profile.json` is written (open the file in chrome://tracing or ui.perfetto.dev) and
    the most expensive operations are printed. With n = 0 nothing happens.
    """
    if n <= 0:
        yield lambda: None
        return
    path = Path(folder) / "profile.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = False

    def finish(profiler: profile) -> None:
        nonlocal done
        done = True
        try:
            profiler.export_chrome_trace(str(path))
            print(f"Profile of up to {n} training steps: {path}")
        except (OSError, RuntimeError) as error:  # a full disk must not stop the training
            print(f"The profile {path} could not be written: {error}")
        averages = profiler.key_averages()
        on_gpu = any(average.self_device_time_total > 0 for average in averages)
        order = f"self_{'device' if on_gpu else 'cpu'}_time_total"
        print(averages.table(sort_by=order, row_limit=_ROWS, max_name_column_width=50))

    with profile(
        activities=supported_activities(),
        schedule=schedule(wait=0, warmup=1, active=n, repeat=1),
        on_trace_ready=finish,
        acc_events=True,
    ) as profiler:
        yield profiler.step
    if not done:
        print("No training step was profiled, because the first step only warms up.")
