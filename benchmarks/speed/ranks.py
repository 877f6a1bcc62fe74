"""Predict the speed-up of many ranks: `python -m benchmarks.speed.ranks`.

Measured on one device: the training step of a configuration, its updates, and the size of their
gradients. Measured on this host: the time in which two processes exchange such gradients by gloo.
Everything else is a prediction. N ranks share the missions of a training step, so collecting and
computing take 1/N of the time. Each update adds a ring all-reduce: 2·(N - 1)/N of the gradient's
bytes over the slowest link, and 2·(N - 1) times its latency. The prediction assumes that no
exchange overlaps with the backward pass, and that devices are as efficient at 1/N of the batch;
`python -m benchmarks.speed.utilisation` shows the limits of the latter.

`fixed batch`: the same training step on N ranks. `grown batch`: N times the missions and batch.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.helpers import processes
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.text import duration_text, table_text
from benchmarks.helpers.trainings import time_steps, warmed_up
from marl_framework.config.model import Config
from marl_framework.stage_timer import StageTimer

COUNTS = (2, 4, 8, 16, 32, 64)
LINKS = {
    # Name: bytes per second in one direction, latency of a message [s], by their makers.
    "NVLink 4, 450 GB/s": (450e9, 5e-6),
    "PCIe 5 x16, 64 GB/s": (64e9, 10e-6),
    "400 Gbit/s network": (50e9, 15e-6),
    "100 Gbit/s network": (12.5e9, 20e-6),
    "10 Gbit/s network": (1.25e9, 50e-6),
}
SHOWN = ("NVLink 4, 450 GB/s", "100 Gbit/s network")  # within a host, between hosts
SHOWN_COUNTS = (2, 8, 64)
_REPEATS = 20


def exchange_seconds(links: tuple[float, float], ranks: int, size: float) -> float:
    """Return the time of a ring all-reduce [s].

    Args:
        links: bytes per second and latency [s] of the slowest link.
        ranks: N.
        size: bytes of each rank.
    """
    rate, latency = links
    return 2 * (ranks - 1) / ranks * size / rate + 2 * (ranks - 1) * latency


def plan(step: Mapping[str, float], links: tuple[float, float], ranks: int) -> dict[str, float]:
    """Predict the speed of N ranks.

    Args:
        step: `seconds`, `updates` and `gradient_bytes` (mean of an update) of a training step.
        links: see `exchange_seconds`.
        ranks: N.

    Returns:
        `exchange_seconds` of a training step, and for a fixed and a grown batch the speed-up in
        transitions per second and the efficiency: speed-up over N.
    """
    exchange = step["updates"] * exchange_seconds(links, ranks, step["gradient_bytes"])
    fixed = step["seconds"] / (step["seconds"] / ranks + exchange)
    grown = ranks * step["seconds"] / (step["seconds"] + exchange)
    return {
        "exchange_seconds": exchange,
        "fixed_speed_up": fixed,
        "fixed_efficiency": fixed / ranks,
        "grown_speed_up": grown,
        "grown_efficiency": grown / ranks,
    }


def measure_step(config: Config, device: torch.device, repeats: int) -> dict[str, float]:
    """Time training steps on one device.

    Returns:
        Medians: `seconds`, `rollout_seconds`, `update_seconds`; `updates` of actor and critic,
        the mean `gradient_bytes` of an update, and `transitions`.
    """
    config = with_overrides(config, "learning.update_interval=1")
    trainer, _ = warmed_up(config, device)
    walls, stages = zip(*time_steps(trainer, StageTimer(device), repeats), strict=True)
    learning = config.learning
    sizes = [
        sum(p.numel() * p.element_size() for p in trainer.algorithm.modules[name].parameters())
        for name in ("actor", "critic")
    ]
    return {
        "seconds": median(walls),
        "rollout_seconds": median(stage["rollout"] for stage in stages),
        "update_seconds": median(stage["update"] for stage in stages),
        "updates": 2 * learning.data_passes * learning.batch_number,
        "gradient_bytes": sum(sizes) / 2,
        "transitions": config.schedule.transitions_per_step,
    }


def gloo_seconds(size: int) -> float:
    """Return the time in which two processes on this host add up `size` bytes [s]; a median."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        first, _ = processes.run_at_once(_exchange, [(rank, store, size) for rank in (0, 1)])
    return float(first)


def _exchange(rank: int, store: str, size: int) -> float:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    gradient, times = torch.zeros(size // 4), []
    for _ in range(_REPEATS + 2):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(gradient)
        times.append(time.perf_counter() - start)
    dist.destroy_process_group()
    return median(times[2:])


def measure(job: Job) -> dict[str, Any]:
    """Measure a training step and an exchange, and predict from them.

    Returns:
        `settings`, `step` (see `measure_step`), `gloo_seconds` of one update between two
        processes on this host, and `rows`: `link`, `ranks` and the result of `plan`.
    """
    step = measure_step(job.config, job.device, job.options.steps)
    measured = gloo_seconds(int(step["gradient_bytes"]))
    here = f"gloo here, {step['gradient_bytes'] / measured / 1e9:.2g} GB/s"
    links = {**LINKS, here: (step["gradient_bytes"] / measured, 0.0)}
    return {
        "settings": {"repeats": job.options.steps, "links": LINKS},
        "step": step,
        "gloo_seconds": measured,
        "rows": [
            {"link": name, "ranks": count, **plan(step, link, count)}
            for name, link in links.items()
            for count in COUNTS
        ],
    }


def table(results: Mapping[str, Any]) -> str:
    """Return the measurement and some rows of the prediction as text."""
    step = results["step"]
    lines = [
        (
            row["link"],
            str(row["ranks"]),
            duration_text(row["exchange_seconds"]),
            f"{row['fixed_speed_up']:.1f}",
            f"{row['fixed_efficiency']:.0%}",
            f"{row['grown_speed_up']:.1f}",
            f"{row['grown_efficiency']:.0%}",
        )
        for row in results["rows"]
        if row["link"] in SHOWN and row["ranks"] in SHOWN_COUNTS
    ]
    header = (
        *("link", "ranks", "exchanges a step", "fixed batch ×", "efficiency"),
        *("grown batch ×", "efficiency"),
    )
    return (
        f"Measured on one device: {duration_text(step['seconds'])} a training step of "
        f"{step['transitions']:,} transitions, {duration_text(step['rollout_seconds'])} of it "
        f"collecting; {step['updates']} updates of {step['gradient_bytes'] / 1e6:.2f} MB each: "
        f"{step['updates'] * step['gradient_bytes'] / 1e6:,.0f} MB a training step.\n"
        f"Measured between two processes here (gloo): {duration_text(results['gloo_seconds'])} an "
        f"update.\n\n" + table_text("Planned, not measured", header, lines)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("speed.ranks", "Predict the speed of many ranks from that of one device.")
    parser.add_number("--steps", 5, "timed training steps", 1, 10_000)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
