"""What flying through another library's interface costs: joint steps a second, core and wrappers.

    python -m benchmarks.speed.wrappers [--num-envs 1,64] [--cpu-time] [--out FILE.json]

A joint step is one move of all UAVs of one mission, with its observations and, once an episode,
the reset. Everybody flies random actions drawn beforehand, whole episodes, medians. The core row is
`MissionEnvironment`, `ObservationBuilder` and the choice in order, by hand. PettingZoo has one
mission. The share is of the core's speed with as many missions. Needs the extras `torchrl`,
`benchmarl`, `pettingzoo` and `gymnasium`.

`--cpu-time` counts the time that one thread computed, which other programs on a busy machine hardly
change, and not the time that passed.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, parse_numbers
from benchmarks.helpers.harness import duration_text, number_text
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder

NUM_ENVS = "1,64"
MOST_ENVS = 2**16

Episode = Callable[[], object]
Maker = Callable[[Config, torch.device, Tensor], Episode]


def core(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Return what flies an episode by the core alone.

    Args:
        config: the missions.
        device: where they live.
        draws: what actions are chosen by, [T, E, N, A] in [0, 1); the largest wins.
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
    """Return what flies an episode by `MissionEnv`; arguments as of `core`."""
    from marl_framework.integrations.torchrl import MissionEnv

    return _tensordict_episode(MissionEnv(config, draws.shape[1], device), draws)


def benchmarl(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Return what flies an episode in an experiment's environment; arguments as of `core`."""
    from torchrl.envs import Compose, TransformedEnv

    from marl_framework.integrations.benchmarl import MissionTask
    from marl_framework.integrations.torchrl import MissionEnv

    mapping: Any = MissionTask.MAPPING
    task = mapping.get_task()
    env = MissionEnv(config, draws.shape[1], device, with_state=True)
    transforms = [*task.get_env_transforms(env), task.get_reward_sum_transform(env)]
    return _tensordict_episode(TransformedEnv(env, Compose(*transforms)), draws)


def gymnasium(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Return what flies an episode by `MissionVectorEnv`; arguments as of `core`."""
    from marl_framework.integrations.gymnasium import MissionVectorEnv

    env = MissionVectorEnv(config, draws.shape[1], device, autoreset_mode="SameStep")
    actions = list(draws.argmax(-1).cpu().numpy())
    env.reset()

    def episode() -> None:
        for chosen in actions:
            env.step(chosen)

    return episode


def pettingzoo(config: Config, device: torch.device, draws: Tensor) -> Episode:
    """Return what flies an episode by `MissionParallelEnv`; arguments as of `core`."""
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


def run(
    config: Config,
    device: torch.device,
    num_envs: Sequence[int],
    seconds: float,
    cpu_time: bool = False,
) -> dict[str, Any]:
    """Time the core and every wrapper.

    Args:
        config: the missions.
        device: where they are flown.
        num_envs: numbers of missions at once.
        seconds: time budget of each row.
        cpu_time: time the computing of one thread.

    Returns:
        `settings`, `machine` and `rows`.
    """
    machine = harness.announce_machine(device)
    clock = time.process_time if cpu_time else time.perf_counter
    with harness.threads(1 if cpu_time else torch.get_num_threads()):
        rows = list(_rows(config, device, num_envs, seconds, clock))
    settings = {
        "num_envs": list(num_envs),
        "seconds_per_row": seconds,
        "clock": "CPU time of one thread" if cpu_time else "time that passed",
        "joint_step": "one move of all UAVs of one mission, its observations, resets included",
        "configuration": config_to_dict(config),
    }
    return {"settings": settings, "machine": machine, "rows": rows}


def table(found: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = [
        (
            row["wrapper"],
            f"{row['num_envs']:,}",
            f"{row['joint_steps_per_second']:,.0f}",
            number_text(row["share_of_core"], ".0%"),
            duration_text(row["added_seconds_per_step"]),
        )
        for row in found["rows"]
    ]
    header = ("wrapper", "missions", "joint steps/s", "of the core", "added to a step of all")
    return harness.table_text("Random flight through each interface", header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser("speed.wrappers", "Time the core and its wrappers for other libraries.")
    parser.add_argument("--num-envs", default=NUM_ENVS, metavar="E,…", help=f"({NUM_ENVS})")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread; CPU only")
    return parser.publish(parser.parse_args(arguments), _measure, table)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    num_envs = parse_numbers("--num-envs", options.num_envs, NUM_ENVS, MOST_ENVS)
    if options.cpu_time and device.type != "cpu":
        raise ConfigError(f"--cpu-time: has no meaning on {device}; use --device cpu")
    try:
        return run(config, device, num_envs, options.seconds_per_row, options.cpu_time)
    except ModuleNotFoundError as error:  # names the extra to install
        raise ConfigError(str(error)) from error


def _rows(
    config: Config,
    device: torch.device,
    num_envs: Sequence[int],
    seconds: float,
    clock: Callable[[], float],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each wrapper and number of missions."""
    generator = torch.Generator(device).manual_seed(1)
    n, a = config.missions.most_agents, config.experiment.constraints.num_actions
    for e in num_envs:
        draws = torch.rand(
            config.missions.episode_length, e, n, a, generator=generator, device=device
        )
        fastest = None
        for name, make in MAKERS.items():
            if name == "pettingzoo" and e > 1:
                continue
            with warnings.catch_warnings():  # of classes of its own, while TorchRL is imported
                warnings.filterwarnings("ignore", "Creating .*WeightUpdater", DeprecationWarning)
                episode = make(config, device, draws)
            with torch.no_grad():
                step = harness.measure(episode, seconds, device, clock=clock)
                step = step.per(config.missions.episode_length)
            fastest = fastest or step.median
            print(f"{name}, {e}: {duration_text(step.median)} a step", file=sys.stderr, flush=True)
            yield {
                "wrapper": name,
                "num_envs": e,
                "seconds_per_step": step.median,
                "lower_quartile": step.lower,
                "upper_quartile": step.upper,
                "episodes": step.repeats,
                "joint_steps_per_second": e / step.median,
                "share_of_core": fastest / step.median,
                "added_seconds_per_step": None if name == "core" else step.median - fastest,
            }


def _tensordict_episode(env: Any, draws: Tensor) -> Episode:
    """Return what flies an episode of a TorchRL environment; it resets by itself."""
    actions = draws.argmax(-1)
    current = env.reset()

    def episode() -> None:
        nonlocal current
        for chosen in actions:
            _, current = env.step_and_maybe_reset(current.set(("uavs", "action"), chosen))

    return episode


if __name__ == "__main__":
    sys.exit(main())
