"""Measure planning and flying over large areas with large teams.

    python -m benchmarks.speed.areas [--planners search,coverage] [--out FILE.json]

One mission at a time, of teams and square areas that grow together and alone; teams that do not fit
into an area are left out. A row is the time of one move of the whole team: planning it, and flying
it in the simulator, as medians over moves, and the peak memory. The exponent b of
seconds = a·size^b is fitted over areas with the largest team, and over teams on the largest area.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.text import duration_text, table_text
from benchmarks.speed.scaling import fit_exponent
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner
from marl_framework.stage_timer import StageTimer

PLANNERS = ("information_gain", "coverage", "search", "random")
TEAMS, SIDES = "4,16,64", "50,100,200,400"
MOVES = 6
"""Number of timed moves of a row."""
TEAM = "experiment.missions.n_agents"
HORIZON = "experiment.baselines.search.horizon=15"


def measure(job: Job) -> dict[str, Any]:
    """Measure all rows.

    Returns:
        `settings`, `rows` and `growth`. A row has `planner`, `uavs`, `side` [m], `positions`,
        `seconds_plan` and `seconds_fly` of a move, and `mebibytes`. Growth has, by planner, the
        exponents over `positions` and `uavs`; None with fewer than two sizes.

    Raises:
        ConfigError: no team fits into an area.
    """
    options, rows = job.options, []
    for side in options.sides:
        area = [f"environment.{axis}_dim={float(side)}" for axis in "xy"]
        x, y, _ = with_overrides(job.config, *area, f"{TEAM}=1").geometry.lattice_shape
        for uavs in (number for number in options.teams if number <= x * y):
            config = with_overrides(job.config, *area, f"{TEAM}={uavs}", HORIZON)
            rows += [_row(config, job.device, name, side) for name in options.planners]
    if not rows:
        raise ConfigError("--teams: none fits into an area of --sides; give a smaller team")
    growth = {name: _growth([r for r in rows if r["planner"] == name]) for name in options.planners}
    return {"settings": {"moves": MOVES}, "rows": rows, "growth": growth}


def _row(config: Config, device: torch.device, name: str, side: int) -> dict[str, Any]:
    harness.reset_peak_memory(device)
    environment = MissionEnvironment(config, 1, device, "test")
    planner, generator = make_planner(name, environment, None), environment.generator
    state, plan, fly = environment.reset(environment.draw_reset()), [], []
    for _ in range(min(MOVES + 1, environment.episode_length)):
        timer = StageTimer(device)
        with timer("plan"):
            actions = planner.act(state, generator).actions
        with timer("fly"):
            environment.step(state, actions, environment.draw_step())
        spent = timer.seconds()
        plan.append(spent["plan"])
        fly.append(spent["fly"])
    x, y, _ = environment.lattice.shape
    return {
        "planner": name,
        "uavs": environment.n_agents,
        "side": side,
        "positions": x * y,
        "seconds_plan": harness.quartiles(plan[1:])[1],  # the first move compiles and plans lanes
        "seconds_fly": harness.quartiles(fly[1:])[1],
        "mebibytes": harness.peak_memory(device) / 2**20,
    }


def _growth(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the exponents of the planning time over positions and UAVs."""
    exponents: dict[str, float | None] = {}
    for size, other in (("positions", "uavs"), ("uavs", "positions")):
        most = max(row[other] for row in rows)
        part = sorted((row[size], row["seconds_plan"]) for row in rows if row[other] == most)
        sizes, seconds = zip(*part, strict=True)
        exponents[size] = fit_exponent(sizes, seconds) if len({*sizes}) > 1 else None
    return exponents


def table(results: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (
            row["planner"],
            str(row["uavs"]),
            f"{row['side']} m",
            duration_text(row["seconds_plan"]),
            duration_text(row["seconds_fly"]),
            f"{row['mebibytes']:,.0f} MiB",
        )
        for row in results["rows"]
    ]
    header = ("planner", "UAVs", "side", "planning a move", "flying it", "memory")
    text = table_text("A move of the whole team, one mission at a time", header, lines)
    for name, growth in results["growth"].items():
        parts = [f"{size}^{power:.2f}" for size, power in growth.items() if power is not None]
        text += f"\n{name}: planning grows with {' and '.join(parts) or 'one size only'}"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    meaning = "Measure planning over large areas with large teams."
    parser = Parser("speed.areas", meaning, "params_fast.yaml")
    parser.add_names("--planners", PLANNERS)
    parser.add_numbers("--teams", TEAMS, "numbers of UAVs", most=128)
    parser.add_numbers("--sides", SIDES, "sides of the area [m]", most=2000)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
