"""How fast observations are made: the published way against batched maps, on CPU and GPU.

    python -m benchmarks.speed.transformations [--agents 1,4,16] [--out FILE.json]

Timed for every backend, per observation of one UAV: fusing what it heard, and building the
actor's 7 channels. The library keeps averages of beliefs and readings up to date, in part
already when a UAV takes its own reading; so all of that counts as the library's time, though
the baseline is not charged for its own readings. All backends start from the same rounds of
flown missions, and each row has its largest error against the baseline.

Backends: `opencv`, the published way (one UAV after the other, every fusion passes over the
whole map); `opencv windowed`, the same with fusion in the footprint alone; `opencv pool`, the
published way in as many processes as there are cores; `kornia cpu`, the library, all UAVs at
once, with all threads, and with one; on a GPU the same eager, compiled (`torch.compile`) and
replayed from a CUDA graph.
"""

from __future__ import annotations

import marl_framework  # noqa: F401  # isort: skip  # says how threads wait, before torch loads

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, parse_numbers, with_overrides
from benchmarks.helpers.harness import CPU, duration_text, number_text, quartiles_text
from benchmarks.helpers.one_at_a_time import keep_freed_memory, process_pool
from benchmarks.speed.transformations_backends import Bench, Recorded, Row
from benchmarks.speed.transformations_figure import draw
from benchmarks.speed.transformations_maps import map_rows
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import ObservationConfig
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import usable_cores

AGENTS = "1,4,16,64,256,1024,4096"
MOST_AGENTS = 2**20
DISTINCT = 64  # UAVs of flown missions; larger batches repeat them, the baseline stops here
MAP_AGENTS = 256


def parse_agents(text: str, n_agents: int) -> list[int]:
    """Return the numbers of UAVs to measure, in rising order.

    Raises:
        ConfigError: not whole numbers, or not whole missions of `n_agents`.
    """
    numbers = parse_numbers("--agents", text, AGENTS, MOST_AGENTS)
    for number in numbers:
        if number > n_agents and number % n_agents:
            raise ConfigError(
                f"--agents {number}: a mission has {n_agents} UAVs; give up to {n_agents}, "
                "or a multiple"
            )
    return numbers


def record(config: Config, agents: Sequence[int]) -> dict[int, Recorded]:
    """Fly the missions that are measured, by UAVs of a mission.

    Fewer UAVs than a mission has are one mission with a smaller team.
    """
    team = config.missions.most_agents
    missions = max(1, min(DISTINCT, max(agents)) // team)
    small = {
        n: Recorded.of(with_overrides(config, f"experiment.missions.n_agents={n}"), 1)
        for n in agents
        if n < team
    }
    return {**small, team: Recorded.of(config, missions)}


def run(
    config: Config, device: torch.device, agents: Sequence[int], seconds: float
) -> dict[str, Any]:
    """Measure everything.

    Args:
        config: the missions; all 7 published channels are built, whatever it switches off.
        device: of the library's rows, beside the CPU.
        agents: see `parse_agents`.
        seconds: time budget of each measurement.

    Returns:
        `settings`, `machine`, `rows` (as `Row`) and `maps` (see `map_rows`).
    """
    config = config.model_copy(update={"observation": ObservationConfig()})
    kept = keep_freed_memory()
    machine = harness.announce_machine(device)
    recorded = record(config, agents)
    team, processes = config.missions.most_agents, usable_cores()
    rows: list[Row] = []
    with (
        torch.no_grad(),
        process_pool({n: r.plain for n, r in recorded.items()}, processes) as pool,
    ):
        sees = {n: np.stack(pool(n, r.plain.agents)) for n, r in recorded.items()}
        bench = Bench(recorded, pool, sees, device, machine["memory_bandwidth"], seconds)
        for number in agents:
            start = time.perf_counter()
            rows += bench.rows(number)
            spent = time.perf_counter() - start
            print(f"{number} UAVs: {spent:.0f} s", file=sys.stderr, flush=True)
    map_agents = max(team, min(MAP_AGENTS, max(agents)) // team * team)
    devices = list(dict.fromkeys([CPU, device]))
    maps = map_rows(config, recorded[team].flown, map_agents, devices, seconds)
    return {
        "settings": {
            "agents": list(agents),
            "seconds_per_row": seconds,
            "uavs_per_mission": team,
            "distinct_missions": len(recorded[team].flown.bits),
            "moves_flown": int(recorded[team].flown.state.t[0]),
            "communication_range": config.experiment.uav.communication_range,
            "pool_processes": processes,
            "cells_not_compared": sum(int((~r.counted).sum()) for r in recorded.values()),
            "timed": "fusing what was heard, building the actor's 7 channels; the library takes "
            "its own readings too, where it updates averaged maps",
            "beliefs": "fused in place, not put back between repeats; cost is value-independent",
            "freed_memory_kept": kept,
            "bytes_moved": "per observation, each input read once, each output written once",
            "configuration": config_to_dict(config),
        },
        "machine": machine,
        "rows": [asdict(row) for row in rows],
        "maps": maps,
    }


# Tables -----------------------------------------------------------------------------------


def rows_table(found: dict[str, Any]) -> str:
    """Return the rows as text."""
    header = ("backend", "UAVs", "per observation", "quartiles", "per second", "speedup",
              "windowed", "own reading", "max error", "bandwidth", "status")  # fmt: skip
    lines = [
        (
            row["backend"],
            f"{row['agents']:,}",
            duration_text(row["seconds_per_observation"]),
            quartiles_text(row),
            number_text(row["observations_per_second"], ",.0f"),
            number_text(row["speedup"], ",.2f", "×"),
            number_text(row["speedup_windowed"], ",.2f", "×"),
            duration_text(row["seconds_own_reading"]),
            number_text(row["max_error"], ".0e"),
            number_text(row["bandwidth_share"], ".1%"),
            row["status"],
        )
        for row in found["rows"]
    ]
    title = "Fusing and observing; speedup against opencv and opencv windowed"
    return harness.table_text(title, header, lines)


def maps_table(found: dict[str, Any]) -> str:
    """Return the cost of each map as text."""
    header = ("map", "backend", "opencv", "batched", "quartiles", "speedup")
    lines = [
        (
            row["map"],
            row["backend"],
            duration_text(row["baseline_seconds"]),
            duration_text(row["seconds_per_map"]),
            quartiles_text(row),
            number_text(row["speedup"], ",.2f", "×"),
        )
        for row in found["maps"]
    ]
    agents = found["maps"][0]["agents"]
    return harness.table_text(f"Map by map, per UAV; batches of {agents} UAVs", header, lines)


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, 1 when a backend differs from the baseline, 2 = bad input."""
    parser = Parser(
        "speed.transformations", "Time fusing and observing, one UAV at a time and batched."
    )
    parser.add_argument("--agents", default=AGENTS, metavar="N,…", help=f"UAVs ({AGENTS})")
    options = parser.parse_args(arguments)
    differs = False

    def table(found: dict[str, Any]) -> str:
        nonlocal differs
        differs = any(row["status"].startswith("differs") for row in found["rows"])
        return f"{rows_table(found)}\n{maps_table(found)}"

    return parser.publish(options, _measure, table, draw) or int(differs)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    agents = parse_agents(options.agents, config.missions.most_agents)
    return run(config, device, agents, options.seconds_per_row)


if __name__ == "__main__":
    sys.exit(main())
