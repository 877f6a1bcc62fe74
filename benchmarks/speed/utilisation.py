"""Compare the reported utilisation of a processor with its share of peak FLOP/s.

    python -m benchmarks.speed.utilisation [--processes P] [--batch B]

The actor processes observations in three ways: one process, one observation at a time (batch 1);
several processes doing the same; one process with a large batch. Then a team trains.

Samples are the actor's observations; in training, transitions. `reported` is the figure of system
monitors: on a GPU the share of the time in which any kernel ran, on a CPU the share of busy cores.
Model FLOP/s are the operations of the networks' products and convolutions, two for a multiply and
add, over time; their share is of the measured peak of large matrix products in the same precision.
SM activity and occupancy are shown for GPUs that count them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import figures, processes
from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.harness import (
    UTILISATION,
    peak_flops,
    utilisation,
    utilisation_monitor,
)
from benchmarks.helpers.networks_alone import flops_of
from benchmarks.helpers.one_at_a_time import keep_freed_memory
from benchmarks.helpers.text import number_text, table_text
from benchmarks.helpers.trainings import add_steps, measure_training
from marl_framework.command_line import usable_cores
from marl_framework.config.model import Config
from marl_framework.device import autocast, resolve_precision, synchronize
from marl_framework.networks.convolutional import place
from marl_framework.networks.registry import make_actor

Work = tuple[int, float, float]
"""Number of samples, and seconds of wall-clock and CPU time."""


class Judge:
    """The actor of a configuration, applied to the same observations again and again.

    Args:
        config: networks, observation, precision.
        device: of the network.
        batch: observations at once.
    """

    def __init__(self, config: Config, device: torch.device, batch: int) -> None:
        sizes = config.network_sizes
        self.batch, self.device = batch, device
        self.precision = resolve_precision(config.compute.precision, device)
        network = make_actor(config.networks, config.compute, sizes)
        self._network = place(network, config.compute, device)
        maps = torch.rand(batch, sizes.actor_channels, *sizes.shape, device=device)
        self._maps = maps.to(self.precision)  # as in rollouts

    @torch.no_grad()
    def once(self) -> None:
        """Process all observations once."""
        with autocast(self.device, self.precision):
            self._network(self._maps)

    def work(self, seconds: float) -> Work:
        """Process observations for some seconds."""
        for _ in range(3):
            self.once()
        synchronize(self.device)
        calls, cpu, start = 0, time.process_time(), time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            self.once()
            calls += 1
            if calls % 100 == 0:
                synchronize(self.device)  # else the host queues work far ahead
        synchronize(self.device)
        passed = time.perf_counter() - start
        return calls * self.batch, passed, time.process_time() - cpu


def several(config: Config, device: torch.device, seconds: float, number: int) -> list[Work]:
    """Process single observations in several processes at once."""
    threads = max(usable_cores() // number, 1)
    return processes.run_at_once(_process, [(config, device, seconds, threads)] * number)


def _process(config: Config, device: torch.device, seconds: float, threads: int) -> Work:
    torch.set_num_threads(threads)
    judge = Judge(config, device, 1)
    judge.once()
    processes.wait_for_others()
    return judge.work(seconds)


def measure(job: Job) -> dict[str, Any]:
    """Measure the three ways, then a training of `--steps`.

    Returns:
        `settings`, `cores`, `peak_flops_per_s`, `flops_per_sample`, `rows`.
    """
    keep_freed_memory()  # else the speed of the large batch varies by a factor of two
    config, device, options = job.config, job.device, job.options
    seconds, number, batch = options.seconds_per_row, options.processes, options.batch
    single, large = Judge(config, device, 1), Judge(config, device, batch)
    peak = peak_flops(device, single.precision)
    plain = Judge(config, torch.device("meta"), 1)  # operations inside our kernels are not counted
    flops = flops_of(plain.once)
    rows: list[dict[str, Any]] = []
    results = {
        "settings": {
            "seconds": seconds,
            "processes": number,
            "threads_of_each_process": max(usable_cores() // number, 1),
            "precision": str(single.precision).removeprefix("torch."),
        },
        "cores": usable_cores(),
        "peak_flops_per_s": peak,
        "flops_per_sample": flops,
        "rows": rows,
    }
    for name, judge, count in (
        ("one process, batch 1", single, 1),
        (f"{number} processes, batch 1", single, number),
        (f"one process, batch {batch:,}", large, 1),
    ):
        print(name, file=sys.stderr, flush=True)
        with utilisation_monitor(device) as monitor:
            done = [judge.work(seconds)] if count == 1 else several(config, device, seconds, count)
        rate = sum(samples / passed for samples, passed, _ in done)
        cpu = sum(used / passed for _, passed, used in done)
        row = _row(name, count, judge.batch, rate, rate * flops, cpu, peak)
        rows.append(row | utilisation(monitor))
        job.save(results)
    print("training", file=sys.stderr, flush=True)
    course = measure_training(config, device)
    rate, cpu = (course[name] / course["seconds"] for name in ("transitions", "cpu_seconds"))
    row = _row("training", 1, None, rate, course["flops"] / course["seconds"], cpu, peak)
    rows.append(row | {name: course[name] for name in (*UTILISATION.values(), "reported_peak")})
    return results


def _row(
    name: str, processes: int, batch: int | None, rate: float, flops: float, cpu: float, peak: float
) -> dict[str, Any]:
    return {
        "name": name,
        "processes": processes,
        "batch": batch,
        "samples_per_s": rate,
        "flops_per_s": flops,
        "share_of_peak": flops / peak,
        "cpu_cores": cpu,
    }


def table(results: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = [
        (
            row["name"],
            f"{row['samples_per_s']:,.0f}",
            number_text(row["reported"], ".0%"),
            number_text(row["reported_peak"], ".0%"),
            number_text(row["sm_activity"], ".0%"),
            number_text(row["sm_occupancy"], ".0%"),
            f"{row['cpu_cores']:.2f}",
            f"{row['flops_per_s'] / 1e9:,.1f}",
            f"{row['share_of_peak']:.1%}",
        )
        for row in results["rows"]
    ]
    header = (
        *("", "samples/s", "reported", "at most", "SM activity", "SM occupancy"),
        *("CPU cores", "GFLOP/s", "of the peak"),
    )
    precision = results["settings"]["precision"]
    title = (
        f"Peak {results['peak_flops_per_s'] / 1e9:,.0f} GFLOP/s in {precision}, "
        f"{results['flops_per_sample'] / 1e6:,.1f} MFLOP a sample"
    )
    return table_text(title, header, lines)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw reported utilisation next to the share of the peak."""
    figure = figures.make_figure(8, 3.6)
    axes = figure.subplots()
    rows = results["rows"]
    for shift, name, colour, label in (
        (-0.2, "reported", "#999999", "reported utilisation"),
        (0.2, "share_of_peak", figures.BLUE, "model FLOP/s, share of the peak"),
    ):
        heights = [100 * (row[name] or 0) for row in rows]
        bars = axes.bar(
            [place + shift for place in range(len(rows))], heights, 0.4, color=colour, label=label
        )
        axes.bar_label(bars, fmt="%.0f %%")
    axes.set_xticks(range(len(rows)), [row["name"].replace(", ", "\n") for row in rows])
    axes.set(ylabel="%", ylim=(0, 125), yticks=range(0, 101, 20))
    figures.tidy(axes, grid=False)
    axes.legend(frameon=False, ncols=2, loc="upper left")
    figures.save(figure, path, results["machine"]["device"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "speed.utilisation", "Compare reported with real utilisation.", "params_fast.yaml"
    )
    parser.add_number("--processes", 6, "processes at once", 1, 256)
    parser.add_number("--batch", 2048, "the large batch", 1, 10**6)
    add_steps(parser, 5)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
