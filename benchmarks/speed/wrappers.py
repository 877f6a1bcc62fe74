"""Measure the cost of the interfaces to other libraries, in joint steps per second.

    python -m benchmarks.speed.wrappers [--num-envs 1,64] [--cpu-time] [--out FILE.json]

A joint step is one move of all UAVs of one mission, with its observations and, once per episode,
the reset. All rows fly the same random actions in whole episodes; times are medians. The core row
calls `MissionEnvironment`, `ObservationBuilder` and the choice in order directly. PettingZoo flies
one mission. Shares are of the core's speed with the same number of missions. This needs the extras
`torchrl`, `benchmarl`, `pettingzoo` and `gymnasium`.

`--cpu-time` counts the CPU time of one thread, which hardly depends on other programs.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.text import duration_text, number_text, table_text
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder

NUM_ENVS = "1,64"
MOST_ENVS = 2**16

Episode = Callable[[], object]
Maker = Callable[[Config, torch.device, Tensor], Episode]


def core(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Return a function that flies an episode with the core alone.

    Args:
        config: of the missions.
        device: of all tensors.
        draws: random numbers in [0, 1), [T, E, N, A]; the allowed action with the largest is taken.
    """
    env = MissionEnvironment(config, draws.shape[1], device)
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state: MissionState | None = None

    def episode() -> None:
        nonlocal state
        state = env.reset(env.draw_reset(), state)
        builder.actor(state)
        for u in draws:

            def choose(i: int, mask: Tensor, u: Tensor = u) -> Tensor:
                return (u[:, i] * mask).argmax(-1)

            actions, _ = env.lattice.choose_in_order(state.positions, choose)
            env.step(state, actions, env.draw_step(reuse=True))
            builder.actor(state)

    return episode


def torchrl(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Fly through `MissionEnv`; see `core`."""
    from marl_framework.integrations.torchrl import MissionEnv

    return _tensordict_episode(MissionEnv(config, draws.shape[1], device), draws)


def benchmarl(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Fly through the environment of an experiment; see `core`."""
    from torchrl.envs import Compose, TransformedEnv

    from marl_framework.integrations.benchmarl import MissionTask
    from marl_framework.integrations.torchrl import MissionEnv

    mapping: Any = MissionTask.MAPPING
    task = mapping.get_task()
    env = MissionEnv(config, draws.shape[1], device, with_state=True)
    transforms = [*task.get_env_transforms(env), task.get_reward_sum_transform(env)]
    return _tensordict_episode(TransformedEnv(env, Compose(*transforms)), draws)


def gymnasium(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Fly through `MissionVectorEnv`; see `core`."""
    from marl_framework.integrations.gymnasium import MissionVectorEnv

    env = MissionVectorEnv(config, draws.shape[1], device, autoreset_mode="SameStep")
    actions = list(draws.argmax(-1).cpu().numpy())
    env.reset()

    def episode() -> None:
        for chosen in actions:
            env.step(chosen)

    return episode


def pettingzoo(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Fly through `MissionParallelEnv`; see `core`."""
    from marl_framework.integrations.pettingzoo import MissionParallelEnv

    env = MissionParallelEnv(config, device)
    rows = draws[:, 0].argmax(-1).tolist()
    actions = [dict(zip(env.possible_agents, row, strict=True)) for row in rows]

    def episode() -> None:
        env.reset()
        for chosen in actions:
            env.step(chosen)

    return episode


MAKERS: dict[str, Maker] = {
    "core": core,
    "torchrl": torchrl,
    "benchmarl": benchmarl,
    "gymnasium": gymnasium,
    "pettingzoo": pettingzoo,
}


def measure(job: Job) -> dict[str, Any]:
    """Time the core and every wrapper; return `settings` and `rows`.

    Raises:
        ConfigError: a library is not installed, or `--cpu-time` is used on a GPU.
    """
    options, device = job.options, job.device
    if options.cpu_time and device.type != "cpu":
        raise ConfigError(f"--cpu-time: not available on {device}; use --device cpu")
    clock = time.process_time if options.cpu_time else time.perf_counter
    try:
        with harness.threads(1 if options.cpu_time else torch.get_num_threads()):
            rows = list(_rows(job, clock))
    except ModuleNotFoundError as error:  # names the extra to install
        raise ConfigError(str(error)) from error
    settings = {
        "num_envs": options.num_envs,
        "seconds_per_row": options.seconds_per_row,
        "clock": "CPU time of one thread" if options.cpu_time else "time that passed",
    }
    return {"settings": settings, "rows": rows}


def table(results: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = [
        (
            row["wrapper"],
            f"{row['num_envs']:,}",
            f"{row['joint_steps_per_second']:,.0f}",
            number_text(row["share_of_core"], ".0%"),
        )
        for row in results["rows"]
    ]
    header = ("wrapper", "missions", "joint steps/s", "of the core")
    return table_text("Random flight through each interface", header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("speed.wrappers", "Time the core and its wrappers for other libraries.")
    parser.add_numbers("--num-envs", NUM_ENVS, "missions at once", MOST_ENVS)
    parser.add_argument("--cpu-time", action="store_true", help="of one thread; CPU only")
    return parser.publish(arguments, measure, table)


def _rows(job: Job, clock: Callable[[], float]) -> Iterator[dict[str, Any]]:
    config, device = job.config, job.device
    generator = torch.Generator(device).manual_seed(1)
    n, a = config.missions.most_agents, config.experiment.constraints.num_actions
    for e in job.options.num_envs:
        draws = torch.rand(
            config.missions.episode_length, e, n, a, generator=generator, device=device
        )
        fastest = None
        for name, make in MAKERS.items():
            if name == "pettingzoo" and e > 1:
                continue
            with warnings.catch_warnings():  # TorchRL warns of its own classes
                warnings.filterwarnings("ignore", "Creating .*WeightUpdater", DeprecationWarning)
                episode = make(config, device, draws)
            with torch.no_grad():
                seconds = job.options.seconds_per_row
                step = harness.measure(episode, seconds, device, clock=clock)
                step = step.per(config.missions.episode_length)
            fastest = fastest or step.median
            print(f"{name}, {e}: {duration_text(step.median)} a step", file=sys.stderr, flush=True)
            yield {
                "wrapper": name,
                "num_envs": e,
                "seconds_per_step": step.median,
                **step.columns("episodes"),
                "joint_steps_per_second": e / step.median,
                "share_of_core": fastest / step.median,
            }


def _tensordict_episode(env: Any, draws: Tensor) -> Episode:
    """Fly through a TorchRL environment that resets itself."""
    actions = draws.argmax(-1)
    current = env.reset()

    def episode() -> None:
        nonlocal current
        for chosen in actions:
            _, current = env.step_and_maybe_reset(current.set(("uavs", "action"), chosen))

    return episode


if __name__ == "__main__":
    sys.exit(main())
