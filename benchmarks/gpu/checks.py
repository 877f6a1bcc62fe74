"""Checks of a GPU that end with one line.

    python -m benchmarks.gpu.checks same_draws|no_waiting|kernel_profile [--device cuda:1]

`same_draws` flies the same missions on the CPU and on the device. Both start from the CPU's
missions, and each step gets the CPU's random numbers and actions. Readings, messages and positions
must be equal; the results of sums and logarithms may differ by rounding in float32.

`no_waiting` makes training steps in which the host must not wait for the GPU: PyTorch raises an
error at the first operation that waits. The first steps may wait, because kernels are compiled
and chosen in them.

`kernel_profile` prints the device time of a training step by kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.helpers.command_line import with_overrides
from benchmarks.helpers.harness import CPU
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import warmed_up
from marl_framework.command_line import BAD_INPUT, FAILED, Parser, add_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.device import resolve_device
from marl_framework.mission.environment import MissionEnvironment, StepResult
from marl_framework.mission.state import MissionState, StepDraws
from marl_framework.observations.builder import make_builder
from marl_framework.planners import RandomPlanner
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

Result = tuple[bool, str]
"""Whether the check passed, and a line with its result."""


# The same draws ---------------------------------------------------------------------------

MISSIONS = 8
CLOSE = 1e-5
"""Largest difference of maps, observations and rewards; relative for sums over a map."""
BELIEFS = 5e-4
"""Largest difference of beliefs. Near 1 they are rounded by 6e-8, that is 6e-4 of their log-odds;
contrary readings bring that back to the middle, 1.5e-4 of a belief each time."""


def same_draws(config: Config, device: torch.device) -> Result:
    """Compare whole missions on the CPU and on the device."""
    found = fly_on_both(config, device)
    allowed = {name: BELIEFS if name in ("beliefs", "global_belief") else CLOSE for name in found}
    worst = max(found, key=lambda name: found[name] / allowed[name])
    return found[worst] <= allowed[worst], (
        f"{MISSIONS} missions of {max(config.missions.budgets)} rounds: {worst} is closest to its "
        f"limit; it differs by {found[worst]:.1e}"
    )


def fly_on_both(config: Config, device: torch.device) -> dict[str, float]:
    """Fly whole missions on both; return the largest difference of each tensor by name."""
    config = with_overrides(config, f"environment.num_envs={MISSIONS}")
    here = MissionEnvironment(config, MISSIONS, CPU)
    there = MissionEnvironment(config, MISSIONS, device)
    planner, state = RandomPlanner(here.lattice), here.reset(here.draw_reset())
    other, found = state.clone().to(device), dict[str, float]()
    for _ in range(here.episode_length):
        actions = planner.act(state, here.generator).actions
        draws = here.draw_step()
        moved = StepDraws(draws.sensor.to(device), draws.communication.to(device))
        result = here.step(state, actions, draws)
        step = there.step(other, actions.to(device), moved)
        expected = dict(_tensors(here, state, actions, result))
        for name, tensor in _tensors(there, other, actions.to(device), step):
            difference = _difference(tensor.cpu(), expected[name])
            found[name] = max(found.get(name, 0.0), difference)
    return found


def _tensors(
    environment: MissionEnvironment, state: MissionState, actions: Tensor, result: StepResult
) -> Iterator[tuple[str, Tensor]]:
    builder = make_builder(environment)
    yield from state.tensors()
    yield from ((f"result.{name}", tensor) for name, tensor in result._asdict().items())
    yield "observations", builder.actor(state)
    yield "critic maps", builder.critic_only(state, actions)


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference; infinity if integers or booleans differ."""
    if not expected.is_floating_point():
        return 0.0 if found.equal(expected) else float("inf")
    scale = expected.abs().clamp(min=1.0) if expected.dtype == torch.float64 else 1.0
    return float(((found - expected).abs() / scale).max()) if expected.numel() else 0.0


# Training steps ---------------------------------------------------------------------------

_FREE, _WATCHED = 3, 2  # training steps that may wait (the last is recorded), and that must not
_SHOWN = 25  # kernels
_LONGEST = 60  # characters of a name


def no_waiting(config: Config, device: torch.device) -> Result:
    """Train a few steps without waiting.

    Raises:
        RuntimeError: the host waited for the GPU.
    """
    trainer = Trainer(config, device)
    for _ in range(_FREE):
        trainer.make_steps(StageTimer(device))
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(_WATCHED):
            found, _ = trainer.make_steps(StageTimer(device))
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    seen = "no wait" if device.type == "cuda" else "not checked on a CPU"
    return True, f"{_WATCHED} training steps, {seen}; critic loss {found['critic_loss']:.3g}"


def kernel_profile(config: Config, device: torch.device) -> Result:
    """Print the kernels of a training step with their time, longest first."""
    (trainer, _), timer = warmed_up(config, device), StageTimer(device)
    on_gpu = device.type == "cuda"
    kind = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[kind], acc_events=True) as recorded:
        trainer.make_steps(timer)
        timer.wall()

    def seconds(event: Any) -> float:
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        return float(spent) * 1e-6

    events = [(e.key, e.count, seconds(e)) for e in recorded.key_averages()]
    kernels = sorted((e for e in events if e[2] > 0), key=lambda e: -e[2])
    total = sum(spent for *_, spent in kernels)
    rows = [
        (name[:_LONGEST], f"{number:,}", f"{1e3 * spent:.3f} ms", f"{spent / total:.1%}")
        for name, number, spent in kernels[:_SHOWN]
    ]
    print(table_text("A training step", ("kernel", "calls", "time", "share"), rows))
    calls, (name, _, longest) = sum(number for _, number, _ in kernels), kernels[0]
    return True, (
        f"{calls:,} kernels in {1e3 * total:.1f} ms; {longest / total:.0%} in {name[:_LONGEST]}"
    )


CHECKS = {check.__name__: check for check in (same_draws, no_waiting, kernel_profile)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a check; return 0 if it passes, 1 if not, 2 for bad input."""
    parser = Parser(prog="python -m benchmarks.gpu.checks", description="Run a check of a GPU.")
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--config", default="params_gpu.yaml", metavar="FILE", help="params file")
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N or cpu")
    add_overrides(parser)
    options = parser.parse_args(arguments)
    try:
        device = resolve_device(options.device)
        config = load_config(options.config, options.overrides)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    if device.type == "cuda":
        torch.cuda.set_device(device)
    passed, line = CHECKS[options.check](config, device)
    print(line)
    return 0 if passed else FAILED


if __name__ == "__main__":
    sys.exit(main())
