"""Measure the speed of observations: the published way against batched maps, on CPU and GPU.

    python -m benchmarks.speed.transformations [--agents 1,4,16] [--out FILE.json]

Each backend is timed per observation of one UAV: fusing the readings that it heard, and building
the actor's 7 channels. The library keeps averages of beliefs and readings up to date, in part when
a UAV takes its own reading. So its time includes that, although the baseline's does not. All
backends start from the same rounds of flown missions, and each row has its largest error against
the baseline.

Backends: `opencv`, the published way (one UAV after the other, every fusion passes over the whole
map); `opencv windowed`, the same with fusion only in the footprint; `opencv pool`, the published
way in as many processes as there are cores; `kornia cpu`, the library, all UAVs at once, with all
threads and with one; on a GPU the same eager and replayed from a CUDA graph. The exit code is 1 if
a backend differs from the baseline.
"""

from __future__ import annotations

import marl_framework  # noqa: F401  # isort: skip  # sets how threads wait, before torch loads

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.one_at_a_time import keep_freed_memory, process_pool
from benchmarks.helpers.text import duration_text, number_text, quartiles_text, table_text
from benchmarks.speed.transformations_backends import DIFFERS, Bench, Recorded
from marl_framework.command_line import usable_cores
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import ObservationConfig
from marl_framework.config.model import Config

AGENTS = "1,4,16,64,256,1024,4096"
MOST_AGENTS = 2**20
DISTINCT = 64  # UAVs of flown missions; larger batches repeat them, the baseline stops here


def measure(job: Job) -> dict[str, Any]:
    """Measure all backends with the 7 published channels; return `settings` and `rows` (`Row`).

    Raises:
        ConfigError: UAVs do not make whole missions.
    """
    agents, seconds = job.options.agents, job.options.seconds_per_row
    config = job.config.model_copy(update={"observation": ObservationConfig()})
    team, processes = config.missions.most_agents, usable_cores()
    for number in agents:
        if number > team and number % team:
            raise ConfigError(f"--agents {number}: must be at most {team}, or a multiple of it")
    keep_freed_memory()
    recorded = record(config, agents)
    plain = {n: r.plain for n, r in recorded.items()}
    with torch.no_grad(), process_pool(plain, processes) as pool:
        seen = {n: np.stack(pool(n, r.plain.agents)) for n, r in recorded.items()}
        flown = recorded[team].flown
        rows: list[dict[str, Any]] = []
        results = {
            "settings": {
                "agents": agents,
                "seconds_per_row": seconds,
                "uavs_per_mission": team,
                "distinct_missions": len(flown.bits),
                "moves_flown": int(flown.state.t[0]),
                "communication_range": config.experiment.uav.communication_range,
                "pool_processes": processes,
                "cells_not_compared": sum(int((~r.counted).sum()) for r in recorded.values()),
            },
            "rows": rows,
        }
        bench = Bench(recorded, pool, seen, job.device, seconds)
        for number in agents:
            start = time.perf_counter()
            rows += map(asdict, bench.rows(number))
            job.save(results)
            spent = time.perf_counter() - start
            print(f"{number} UAVs: {spent:.0f} s", file=sys.stderr, flush=True)
    return results


def record(config: Config, agents: Sequence[int]) -> dict[int, Recorded]:
    """Fly the measured missions; return them by UAVs of a mission.

    Fewer UAVs than the configured team are one mission with a smaller team.
    """
    team = config.missions.most_agents
    missions = max(1, min(DISTINCT, max(agents)) // team)
    small = {
        n: Recorded.of(with_overrides(config, f"experiment.missions.n_agents={n}"), 1)
        for n in agents
        if n < team
    }
    return {**small, team: Recorded.of(config, missions)}


def table(results: Mapping[str, Any]) -> str:
    """Return the rows as text."""
    header = ("backend", "UAVs", "per observation", "quartiles", "per second", "speedup",
              "windowed", "max error", "status")  # fmt: skip
    lines = [
        (
            row["backend"],
            f"{row['agents']:,}",
            duration_text(row["seconds_per_observation"]),
            quartiles_text(row),
            number_text(row["observations_per_second"], ",.0f"),
            number_text(row["speedup"], ",.2f", "×"),
            number_text(row["speedup_windowed"], ",.2f", "×"),
            number_text(row["max_error"], ".0e"),
            row["status"],
        )
        for row in results["rows"]
    ]
    title = "Fusing and observing; speedup against opencv and opencv windowed"
    return table_text(title, header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, 1 if a backend differs from the baseline, 2 for bad input."""
    parser = Parser(
        "speed.transformations", "Time fusing and observing, one UAV at a time and batched."
    )
    parser.add_numbers("--agents", AGENTS, "UAVs at once", MOST_AGENTS)
    statuses: list[str] = []

    def watched(job: Job) -> dict[str, Any]:
        results = measure(job)
        statuses.extend(row["status"] for row in results["rows"])
        return results

    return parser.publish(arguments, watched, table) or int(DIFFERS in statuses)


if __name__ == "__main__":
    sys.exit(main())
