"""When does a processor work, and when does it only look busy?

    python -m benchmarks.speed.utilisation [--processes P] [--batch B]

The actor judges observations for a while in three ways: one process, one observation at a time
(batch 1); several processes doing the same; one process with a large batch. Then a team trains.

Samples are observations judged; in training, transitions learned from. `reported` is what system
monitors show: on a GPU the share of the time in which any kernel ran, on a CPU the share of all
cores that were busy. Model FLOP/s are the operations of the networks' products and convolutions,
two for a multiply and add, over time; their share is of the measured peak of large matrix products
in the same precision. On a GPU that counts them, SM activity and occupancy stand beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import Parser, check_between, with_overrides, with_steps
from benchmarks.helpers.hardware import peak_flops, utilisation, utilisation_monitor
from benchmarks.helpers.harness import number_text
from benchmarks.helpers.networks_alone import flops_of
from benchmarks.helpers.one_at_a_time import keep_freed_memory
from benchmarks.helpers.short_training import learn
from marl_framework.config.loading import config_from_dict, config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import autocast, resolve_precision, synchronize, usable_cores
from marl_framework.networks.convolutional import place
from marl_framework.networks.registry import make_actor
from marl_framework.training.hardware import cpu_seconds

_START = 300.0  # seconds that processes may take to get ready


class Judge:
    """The actor of a configuration, judging the same observations again and again.

    Args:
        config: networks, observation, precision.
        device: where.
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
        """Judge all observations."""
        with autocast(self.device, self.precision):
            self._network(self._maps)

    def work(self, seconds: float) -> tuple[int, float, float]:
        """Judge for so long; return samples, seconds and this process's CPU seconds."""
        for _ in range(3):
            self.once()
        synchronize(self.device)
        calls, cpu, start = 0, cpu_seconds(), time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            self.once()
            calls += 1
            if calls % 100 == 0:
                synchronize(self.device)  # else the host queues work far ahead
        synchronize(self.device)
        passed = time.perf_counter() - start
        return calls * self.batch, passed, cpu_seconds() - cpu


def _process(
    tree: Mapping[str, Any], device: str, seconds: float, threads: int, ready: Any, found: Any
) -> None:
    """Judge in a process of its own, at the same time as the others."""
    torch.set_num_threads(threads)
    judge = Judge(config_from_dict(tree), torch.device(device), 1)
    judge.once()
    ready.wait(_START)
    found.put(judge.work(seconds))


def several(
    config: Config, device: torch.device, seconds: float, processes: int
) -> list[tuple[int, float, float]]:
    """Judge in several processes at once, batch 1; return what each did (see `Judge.work`)."""
    context = multiprocessing.get_context("spawn")
    ready, found = context.Barrier(processes + 1), context.Queue()
    threads = max(usable_cores() // processes, 1)
    arguments = (config_to_dict(config), str(device), seconds, threads, ready, found)
    workers = [context.Process(target=_process, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    try:
        ready.wait(_START)
        return [found.get(timeout=seconds + _START) for _ in workers]
    finally:
        for worker in workers:
            worker.join(timeout=10)
            if worker.is_alive():
                worker.terminate()


def run(
    config: Config, device: torch.device, seconds: float, processes: int, batch: int
) -> dict[str, Any]:
    """Measure the four ways.

    Args:
        config: networks and training; `learning.training_steps` are made.
        device: where.
        seconds: of each of the first three.
        processes: at once.
        batch: the large one.

    Returns:
        `settings`, `machine`, `peak_flops_per_s`, `flops_per_sample`, `rows`.
    """
    keep_freed_memory()  # else the large batch is twice as fast or not by chance
    machine = harness.announce_machine(device)
    single, large = Judge(config, device, 1), Judge(config, device, batch)
    peak, flops = peak_flops(device, single.precision), flops_of(single.once)
    rows = []
    for name, judge, count in (
        ("one process, batch 1", single, 1),
        (f"{processes} processes, batch 1", single, processes),
        (f"one process, batch {batch:,}", large, 1),
    ):
        print(name, file=sys.stderr, flush=True)
        with utilisation_monitor(device) as monitor:
            done = [judge.work(seconds)] if count == 1 else several(config, device, seconds, count)
        rate = sum(samples / passed for samples, passed, _ in done)
        cpu = sum(used / passed for _, passed, used in done)
        rows.append(_row(name, count, judge.batch, rate, rate * flops, cpu, peak))
        rows[-1] |= utilisation(monitor)
    print("training", file=sys.stderr, flush=True)
    course = learn(config, device)
    rate, cpu = (course[name] / course["seconds"] for name in ("transitions", "cpu_seconds"))
    row = _row("training", 1, None, rate, course["flops"] / course["seconds"], cpu, peak)
    rows.append(row | {name: course[name] for name in utilisation_names()})
    return {
        "settings": {
            "seconds": seconds,
            "processes": processes,
            "threads_of_each_process": max(usable_cores() // processes, 1),
            "precision": str(single.precision).removeprefix("torch."),
            "configuration": config_to_dict(config),
        },
        "machine": machine,
        "cores": usable_cores(),
        "peak_flops_per_s": peak,
        "flops_per_sample": flops,
        "rows": rows,
    }


def utilisation_names() -> tuple[str, ...]:
    """Return the names that `hardware.utilisation` gives its figures."""
    return ("reported", "reported_peak", "sm_activity", "sm_occupancy")


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


def table(found: Mapping[str, Any]) -> str:
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
        for row in found["rows"]
    ]
    header = (
        *("", "samples/s", "reported", "at most", "SM activity", "SM occupancy"),
        *("CPU cores", "GFLOP/s", "of the peak"),
    )
    title = (
        f"Peak {found['peak_flops_per_s'] / 1e9:,.0f} GFLOP/s in {found['settings']['precision']}, "
        f"{found['flops_per_sample'] / 1e6:,.1f} MFLOP a sample"
    )
    return harness.table_text(title, header, lines)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw reported utilisation beside the share of the peak."""
    figure = figures.make_figure(8, 3.6)
    axes = figure.subplots()
    rows = found["rows"]
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
    figures.save(figure, path, found["machine"]["device"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "speed.utilisation", "Compare reported with real utilisation.", "params_fast.yaml"
    )
    parser.add_argument("--processes", type=int, default=6, metavar="P", help="at once (6)")
    parser.add_argument("--batch", type=int, default=2048, metavar="B", help="the large one (2048)")
    parser.add_argument("--steps", type=int, default=5, metavar="S", help="training steps (5)")
    return parser.publish(parser.parse_args(arguments), _measure, table, draw)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    check_between("--processes", options.processes, 1, 256)
    check_between("--batch", options.batch, 1, 10**6)
    config = with_overrides(with_steps(config, options.steps), f"compute.device={device}")
    return run(config, device, options.seconds_per_row, options.processes, options.batch)


if __name__ == "__main__":
    sys.exit(main())
