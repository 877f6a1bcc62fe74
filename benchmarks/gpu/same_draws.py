"""Flies the same missions on the CPU and on a device, from the same draws, and compares them.

    python -m benchmarks.gpu.same_draws [--device cuda:1]

Both start from the CPU's missions. Each step gets the CPU's random numbers and actions. Readings,
messages and positions must be equal; what follows from sums and logarithms may differ by what
rounding in float32 makes of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.gpu.command_line import run_check
from benchmarks.helpers.command_line import with_overrides
from benchmarks.helpers.harness import CPU
from marl_framework.config.model import Config
from marl_framework.mission.draws import StepDraws
from marl_framework.mission.environment import MissionEnvironment, StepResult
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import make_builder
from marl_framework.planners import RandomPlanner

MISSIONS = 8
CLOSE = 1e-5
"""Largest difference of maps, observations and rewards; of sums over a map relative to the sum."""

BELIEFS = 5e-4
"""The same of beliefs: near 1 they are rounded by 6e-8, that is 6e-4 of their log-odds, and
contrary readings bring that back to the middle, 1.5e-4 of a belief each time."""

Differences = dict[str, float]


def fly(config: Config, device: torch.device) -> Differences:
    """Fly whole missions on both; return the largest difference of everything by name."""
    config = with_overrides(config, f"environment.num_envs={MISSIONS}")
    here = MissionEnvironment(config, MISSIONS, CPU)
    there = MissionEnvironment(config, MISSIONS, device)
    planner, state = RandomPlanner(here.lattice), here.reset(here.draw_reset())
    other, found = state.clone().to(device), Differences()
    for _ in range(here.episode_length):
        actions = planner.act(state, here.generator).actions
        draws = here.draw_step()
        moved = StepDraws(draws.sensor.to(device), draws.communication.to(device))
        result = here.step(state, actions, draws)
        step = there.step(other, actions.to(device), moved)
        pairs = zip(
            _values(here, state, actions, result),
            _values(there, other, actions.to(device), step),
            strict=True,
        )
        for (name, expected), (_, tensor) in pairs:
            found[name] = max(found.get(name, 0.0), _difference(tensor.cpu(), expected))
    return found


def _values(
    environment: MissionEnvironment, state: MissionState, actions: Tensor, result: StepResult
) -> list[tuple[str, Tensor]]:
    builder = make_builder(environment)
    return [
        *state.tensors(),
        *((f"result.{name}", tensor) for name, tensor in result._asdict().items()),
        ("observations", builder.actor(state)),
        ("critic maps", builder.critic_only(state, actions)),
    ]


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference; of what is exact, infinity where anything differs."""
    if not expected.is_floating_point():
        return 0.0 if found.equal(expected) else float("inf")
    scale = expected.abs().clamp(min=1.0) if expected.dtype == torch.float64 else 1.0
    return float(((found - expected).abs() / scale).max()) if expected.numel() else 0.0


def check(config: Config, device: torch.device) -> tuple[bool, str]:
    """Name what differs most."""
    found = fly(config, device)
    allowed = {name: BELIEFS if name in ("beliefs", "global_belief") else CLOSE for name in found}
    worst = max(found, key=lambda name: found[name] / allowed[name])
    well = found[worst] <= allowed[worst]
    return well, (
        f"{MISSIONS} missions of {max(config.missions.budgets)} rounds: {worst} differs by "
        f"{found[worst]:.1e}, nothing comes closer to its limit"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return 0, 1 where too much differs, or 2 for bad input."""
    return run_check("same_draws", check, arguments)


if __name__ == "__main__":
    sys.exit(main())
