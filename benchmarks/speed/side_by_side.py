"""Time other simulators of teams and this one by turns.

    pip install vmas hide-and-seek-engine pygame      # any of them, into the same environment
    python -m benchmarks.speed.side_by_side [--num-envs 1,64] [--cells 103]

All rows fly as many agents with random actions, in one process with one thread. A round times each
row once, and speeds are medians over rounds. The clock counts CPU time, which hardly depends on
other programs. A joint step is one move of all agents of one environment with all observations.
The tasks differ, so the table has the size of an agent's observation and the cells of the map.
A flight is a whole episode: a reset, and 15 joint steps here, 100 in VMAS (the limit in BenchMARL),
250 in Hide-And-Seek-Engine (its default).
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import cv2
import numpy as np
import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.text import table_text
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import RandomPlanner

NUM_ENVS = "1,64"
MOST_ENVS = 2**12
_LEAST_ROUNDS = 3
_VMAS_MOVES, _RESCUE_MOVES = 100, 250
_VIEW = 7  # cells; sees 149 at once, where our lowest footprint in params_fast.yaml has 144


class Flight(NamedTuple):
    """Environments that are ready to fly."""

    fly: Callable[[], object]
    """Flies an episode in all environments."""
    moves: int
    """Number of joint steps of an episode."""
    observation: int
    """Size of an agent's observation [bytes]."""
    cells: int | None
    """Number of cells of the map; None without a map."""


def ours(config: Config, num_envs: int) -> Flight:
    """Fly whole missions."""
    env = MissionEnvironment(config, num_envs, harness.CPU)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner, state = RandomPlanner(env.lattice), env.reset()

    def fly() -> None:
        env.reset(state=state)
        for _ in range(env.episode_length):
            actions = planner.act(state, env.generator).actions
            env.step(state, actions, env.draw_step(reuse=True))
            builder.actor(state)

    observation = builder.actor(state)[0, 0].nbytes
    return Flight(fly, env.episode_length, observation, math.prod(config.geometry.map_shape))


def vmas(scenario: str) -> Callable[[Config, int], Flight]:
    """Return a function that steps a scenario of VMAS."""

    def make(config: Config, num_envs: int) -> Flight:
        agents, make_env = config.missions.most_agents, import_module("vmas").make_env
        env = make_env(scenario, num_envs=num_envs, device="cpu", seed=0, n_agents=agents)
        observation = env.reset()[0][0].nbytes

        def fly() -> None:
            env.reset()
            for _ in range(_VMAS_MOVES):
                env.step(env.get_random_actions())

        return Flight(fly, _VMAS_MOVES, observation, None)

    return make


def hide_and_seek(config: Config, num_envs: int) -> Flight:
    """Step Hide-And-Seek-Engine with drones above a plain of as many cells as our map."""
    agents = config.missions.most_agents
    names = [f"drone {i}" for i in range(agents)]
    level = {
        "tiles": {"plain": {"rgb": [0, 0, 0], "altitude": 1, "supports_flying": True}},
        "agents": {
            name: {"flying": True, "base_view": _VIEW, "start": [0.2, i / agents]}
            for i, name in enumerate(names)
        },
        "survivors": {name: {"allowed_savers": names, "start": [0.8, 0.5]} for name in names},
    }
    shape, unpinned = config.geometry.map_shape, torch.empty
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, f"{name}.json") for name in level}
        for name, file in files.items():
            file.write_text(json.dumps(level[name]), encoding="utf-8")
        image = str(Path(folder, "map.png"))
        cv2.imwrite(image, np.zeros((*shape, 3), np.uint8))
        # PyTorch pins no memory without a GPU.
        with patch("torch.empty", lambda *size, pin_memory=False, **how: unpinned(*size, **how)):
            engine = import_module("hide_and_seek_engine.env_wrapper").SARBatchedGridEnv
            paths = (image, *map(str, files.values()))
            env = engine(num_envs, *paths, mode="decentralized", requires_state=False)
    seen, _ = env.reset()
    random = np.random.default_rng(0)

    def fly() -> None:
        env.reset()
        for _ in range(_RESCUE_MOVES):
            move = random.uniform(-1, 1, (num_envs, agents, 2)).astype(np.float32)
            env.step(move, random.integers(0, 4, (num_envs, agents), np.int32))

    observation = sum(part[0, 0].nbytes for part in seen.values())
    return Flight(fly, _RESCUE_MOVES, observation, math.prod(shape))


CONTENDERS: dict[str, tuple[str, Callable[[Config, int], Flight]]] = {
    "mapping mission": ("marl_framework", ours),
    "navigation": ("vmas", vmas("navigation")),
    "discovery": ("vmas", vmas("discovery")),
    "search and rescue": ("hide_and_seek_engine", hide_and_seek),
}
"""Package and environments of each task."""


def measure(job: Job) -> dict[str, Any]:
    """Time all installed contenders by turns; return `settings` and `rows`."""
    rows = []
    with harness.threads(1), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other libraries
        for num_envs in job.options.num_envs:
            rows += _side_by_side(job.config, num_envs, job.options.seconds_per_row)
    settings = {"num_envs": job.options.num_envs, "seconds_per_row": job.options.seconds_per_row}
    return {"settings": settings, "rows": rows}


def _side_by_side(config: Config, num_envs: int, seconds: float) -> list[dict[str, Any]]:
    flights = {
        task: make(config, num_envs)
        for task, (package, make) in CONTENDERS.items()
        if find_spec(package) is not None
    }
    samples: dict[str, list[float]] = {task: [] for task in flights}
    for flight in flights.values():
        flight.fly()  # compiles
    end = time.process_time() + seconds * len(flights)
    while time.process_time() < end or len(samples["mapping mission"]) < _LEAST_ROUNDS:
        for task, flight in flights.items():
            start = time.process_time()
            flight.fly()
            samples[task].append(time.process_time() - start)
    rows = []
    for task, (package, _) in CONTENDERS.items():
        row: dict[str, Any] = {"package": package, "task": task, "num_envs": num_envs}
        if task in flights:
            lower, median, upper = harness.quartiles(samples[task])
            steps = num_envs * flights[task].moves
            row |= {
                "version": version(package),
                "agents": config.missions.most_agents,
                "joint_steps_per_s": steps / median,
                "lower": steps / upper,
                "upper": steps / lower,
                "moves": flights[task].moves,
                "rounds": len(samples[task]),
                "observation_bytes": flights[task].observation,
                "cells": flights[task].cells,
            }
        rows.append(row)
    return rows


def table(results: dict[str, Any]) -> str:
    """Return the rows as text."""
    lines = []
    for row in results["rows"]:
        name = f"{row['package']} {row.get('version', '')}".strip()
        line = [name, row["task"], f"{row['num_envs']:,}"]
        if "agents" not in row:
            lines.append((*line, "not installed", *[""] * 4))
            continue
        joint, cells = row["joint_steps_per_s"], row["cells"]
        line += [f"{joint:,.0f}", f"{row['lower']:,.0f} … {row['upper']:,.0f}"]
        line += [f"{joint * row['agents']:,.0f}", f"{row['observation_bytes']:,}"]
        lines.append((*line, "–" if cells is None else f"{cells:,}"))
    speeds = ("joint steps/s", "quartiles", "agent steps/s")
    header = ("library", "task", "environments", *speeds, "bytes seen", "cells")
    return table_text("The same number of agents, one thread; tasks differ", header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    text = "Time this library and other simulators of teams by turns."
    parser = Parser("speed.side_by_side", text, "params_fast.yaml", device=False)
    parser.add_numbers("--num-envs", NUM_ENVS, "environments at once", MOST_ENVS)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # of libraries with threads of their own
    sys.exit(main())
