"""How fast missions are flown: joint steps a second, where the time goes, and memory.

    python -m benchmarks.speed.rollout [--num-envs 1,16,64] [--policy random|actor]

One joint step is one move of all UAVs of one mission, with all that learning needs of it: random
draws, the actor's observations, actions, the critic's maps, readings, reward, messages, fusion,
and the rollout that keeps them. Whole episodes are collected as in training, so the start of an
episode counts too. The policy `random` chooses evenly among the allowed actions; `actor` asks an
untrained network of the configured size. Rows with `compiled` false have `compute.compile` off.

Totals come from episodes without stage timers, stages from other ones. Stages are seconds per
joint step; `reset` is the start of an episode, spread over its moves. With `compute.cuda_graphs`
the totals are those of recorded episodes; stages never are. `share_of_bandwidth` is what a joint
step must read and write, over what the memory moves in that time. Memory is measured in fresh
processes.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, parse_numbers, with_overrides
from benchmarks.helpers.hardware import held_memory, peak_memory, reset_peak_memory
from benchmarks.helpers.harness import (
    duration_text,
    in_fresh_process,
    number_text,
    quartiles_text,
)
from benchmarks.helpers.least_work import count_work
from marl_framework.algorithms.graphs import WARM_UP, make_graphs
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import resolve_precision
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from marl_framework.stage_timer import OTHER, StageTimer

NUM_ENVS = "1,16,64"
MOST_ENVS = 2**20
MOST_EAGER = 16  # with more missions plain operators take minutes on a CPU and tell nothing new
POLICIES = ("random", "actor")
STAGES = ("draw", "observe", "policy", "critic_maps", "measure", "reward", "hear_and_fuse",
          "reset", OTHER)  # fmt: skip
MEMORY_ENVS = (16, 64)
SETTLED = 50  # episodes; whatever is made once has been made by then


# Flying -----------------------------------------------------------------------------------


class Flight:
    """Whole episodes of E missions, collected as in training, ready to be timed.

    Args:
        config: the missions, and the actor's size.
        num_envs: E.
        device: where everything lives.
        policy: `random` or `actor`.
    """

    def __init__(
        self, config: Config, num_envs: int, device: torch.device, policy: str = "random"
    ) -> None:
        self.environment = MissionEnvironment(config, num_envs, device)
        self.task = MissionTask(self.environment)
        self.joint_steps = num_envs * self.task.episode_length
        graphs = make_graphs(config.compute, device)
        self.recorded = graphs is not None
        precision = resolve_precision(config.compute.precision, device)
        collector = partial(
            RolloutCollector, self.task, len(self.task.metric_names), precision=precision
        )
        self._collector = collector(graphs=graphs)
        self._eager = collector()  # its stages can be told apart
        # Equal logits for all actions: the policy is uniform over the allowed ones.
        even = torch.zeros(num_envs, self.task.n_agents, self.task.sizes.num_actions, device=device)
        self._policy: Callable[[Tensor], Tensor] = lambda _: even
        if policy == "actor":
            self._policy = make_algorithm(config, device).act

    @torch.no_grad()
    def episode(self) -> Rollout:
        """Fly one episode of all missions."""
        return self._collector.collect(self._policy, 0.0)

    @torch.no_grad()
    def _staged(self) -> Rollout:
        return self._eager.collect(self._policy, 0.0)

    def stages(self, episodes: int) -> dict[str, float]:
        """Return seconds per joint step in each of `STAGES`: medians over some episodes."""
        clock = _StageClock(self.task.device)
        with self._watched(clock):
            spent = [clock.measure(self._staged) for _ in range(episodes)]
        return {
            stage: median(one.get(stage, 0.0) for one in spent) / self.joint_steps
            for stage in STAGES
        }

    @contextmanager
    def _watched(self, clock: _StageClock) -> Iterator[None]:
        """Put a clock around the parts of a step."""
        environment, task = self.environment, self.task
        watched: list[tuple[Any, str, str]] = [
            (self, "_policy", "policy"),
            (environment, "draw_step", "draw"),
            (environment, "hear", "hear_and_fuse"),
            (environment.fusion, "read", "measure"),
            (environment.fusion, "fuse_global", "reward"),
            (environment.fusion, "fuse_own", "hear_and_fuse"),
            (task, "observe", "observe"),
            (task, "critic_maps", "critic_maps"),
            (task, "choose_in_order", "policy"),
            (task, "reset", "reset"),
        ]
        if task.draw_actions is not None:
            watched.append((task, "draw_actions", "policy"))
        before = [vars(owner).get(name) for owner, name, _ in watched]
        for owner, name, stage in watched:
            setattr(owner, name, clock.around(stage, getattr(owner, name)))
        try:
            yield
        finally:
            for (owner, name, _), own in zip(watched, before, strict=True):
                delattr(owner, name)  # a method of the class shows again
                if own is not None:
                    setattr(owner, name, own)


class _StageClock:
    """Times calls by stage; what is called inside a stage belongs to the outer one."""

    def __init__(self, device: torch.device) -> None:
        self._timer = StageTimer(device)
        self._inside = False

    def around(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside = True
            try:
                with self._timer(stage):
                    return call(*args, **kwargs)
            finally:
                self._inside = False

        return timed

    def measure(self, work: Callable[[], object]) -> dict[str, float]:
        """Return seconds in each stage of one call; `other` is what lies outside them all."""
        self._timer.reset()
        work()
        wall = self._timer.wall()
        spent = self._timer.seconds()
        return {**spent, OTHER: max(0.0, wall - sum(spent.values()))}


def measure_row(
    config: Config, num_envs: int, device: torch.device, policy: str, seconds: float
) -> dict[str, Any]:
    """Time episodes of `num_envs` missions as a whole for some seconds, then a few by stage.

    Returns:
        A row of the JSON without `share_of_bandwidth`; `episodes` is how often all missions were
        timed.
    """
    flight = Flight(config, num_envs, device, policy)
    warm_up = WARM_UP + 1 if flight.recorded else 1
    whole = harness.measure(flight.episode, seconds, device, warm_up=warm_up)
    joint_step = whole.per(flight.joint_steps)
    stages = flight.stages(min(3, whole.repeats))
    return {
        "num_envs": num_envs,
        "compiled": config.compute.compile,
        "recorded": flight.recorded,
        "joint_steps_per_s": 1 / joint_step.median,
        "agent_steps_per_s": flight.task.n_agents / joint_step.median,
        "seconds_per_joint_step": joint_step.median,
        "lower_quartile": joint_step.lower,
        "upper_quartile": joint_step.upper,
        "episodes": joint_step.repeats,
        "reset_share": stages["reset"] / sum(stages.values()),
        "stages": stages,
    }


# Memory -----------------------------------------------------------------------------------


def flight_peak(config: Config, num_envs: int, device: torch.device, policy: str) -> int:
    """Return the peak memory of this process [bytes] after two episodes."""
    Flight(config, 1, device, policy).episode()  # what is loaded and compiled does not count
    gc.collect()
    reset_peak_memory(device)
    flight = Flight(config, num_envs, device, policy)
    for _ in range(2):
        flight.episode()
    return peak_memory(device)


def held_after(config: Config, device: torch.device, policy: str, episodes: int) -> list[int]:
    """Return the memory held [bytes] after `SETTLED` and after `episodes` episodes."""
    flight = Flight(config, config.environment.num_envs, device, policy)
    found = []
    for count in (SETTLED, episodes - SETTLED):
        for _ in range(count):
            flight.episode()
        gc.collect()
        found.append(held_memory(device))
    return found


def bytes_per_env(config: Config, device: torch.device, policy: str) -> float:
    """Return how much the peak memory grows with one more mission [bytes]."""
    few, many = MEMORY_ENVS
    peaks = [
        in_fresh_process(partial(flight_peak, config, num, device, policy)) for num in (few, many)
    ]
    return (peaks[1] - peaks[0]) / (many - few)


def growth_over_episodes(
    config: Config, device: torch.device, policy: str, episodes: int
) -> dict[str, Any]:
    """Fly many missions on a small map; return what is held after some and after all."""
    pixel = config.sensor.pixel
    sides = {"x": pixel.number_x, "y": pixel.number_y}
    coarse = [f"sensor.pixel.number_{axis}={min(12, side)}" for axis, side in sides.items()]
    small = with_overrides(config, *coarse, "environment.num_envs=4")
    held = in_fresh_process(partial(held_after, small, device, policy, episodes))
    return {"episodes": [SETTLED, episodes], "held_bytes": held, "growth_bytes": held[1] - held[0]}


def memory(
    config: Config, device: torch.device, policy: str, episodes: int
) -> dict[str, float | dict[str, Any]]:
    """Return `bytes_per_env` and `growth_over_episodes`."""
    return {
        "bytes_per_env": bytes_per_env(config, device, policy),
        "growth_over_episodes": growth_over_episodes(config, device, policy, episodes),
    }


# The benchmark ----------------------------------------------------------------------------


def refuse_too_many(config: Config, num_envs: int, device: torch.device) -> None:
    """Refuse what surely does not fit: the maps of the missions alone are larger than the memory.

    Raises:
        ConfigError: with the number of missions that may fit.
    """
    rows, cols = config.geometry.map_shape
    # Own beliefs and the global one in float32, one byte of truth.
    a_mission = rows * cols * (4 * config.missions.most_agents + 5)
    most = harness.free_memory(device) // a_mission
    if num_envs > most:
        raise ConfigError(
            f"--num-envs {num_envs}: their maps need {num_envs * a_mission / 1e9:.1f} GB; "
            f"there is room for {most} missions at most"
        )


def run(
    config: Config,
    num_envs: Sequence[int],
    device: torch.device,
    policy: str,
    episodes: int,
    seconds: float,
) -> dict[str, Any]:
    """Measure everything.

    Args:
        config: the missions.
        num_envs: numbers of missions at once.
        device: where they are flown.
        policy: see `Flight`.
        episodes: how many are flown to see whether memory grows; 0 leaves memory out.
        seconds: time budget of each row's total.

    Returns:
        `settings`, `machine`, `must_do` (see `least_work.count_work`), `rows` (see `measure_row`),
        `bytes_per_env` and `growth_over_episodes`.
    """
    machine = harness.announce_machine(device)
    must_do = count_work(config)
    least_seconds = must_do["bytes"] / machine["memory_bandwidth"][str(device)]
    rows = []
    for number in num_envs:
        for compiled in (True, False):
            if not compiled and number > MOST_EAGER:
                continue
            chosen = with_overrides(config, f"compute.compile={str(compiled).lower()}")
            row = measure_row(chosen, number, device, policy, seconds)
            row["share_of_bandwidth"] = least_seconds / row["seconds_per_joint_step"]
            rows.append(row)
            speed = f"{row['joint_steps_per_s']:,.0f} joint steps/s"
            print(f"{number} missions, {compiled=}: {speed}", file=sys.stderr, flush=True)
    return {
        "settings": {
            "num_envs": list(num_envs),
            "policy": policy,
            "seconds_per_row": seconds,
            "most_missions_without_compiling": MOST_EAGER,
            "joint_step": "one move of all UAVs of one mission, its share of the start included",
            "episodes": "whole ones, into the rollout that training uses; medians over episodes",
            "configuration": config_to_dict(config),
        },
        "machine": machine,
        "must_do": must_do,
        "rows": rows,
        **(memory(config, device, policy, episodes) if episodes else {}),
    }


def rows_table(found: dict[str, Any]) -> str:
    """Return the rows as text."""
    header = ("missions", "compiled", "joint steps/s", "agent steps/s", "a joint step", "quartiles",
              "of the bandwidth", *(stage.replace("_", " ") for stage in STAGES))  # fmt: skip
    lines = [
        (
            f"{row['num_envs']:,}",
            "yes" if row["compiled"] else "no",
            number_text(row["joint_steps_per_s"], ",.0f"),
            number_text(row["agent_steps_per_s"], ",.0f"),
            duration_text(row["seconds_per_joint_step"]),
            quartiles_text(row),
            number_text(row["share_of_bandwidth"], ".1%"),
            *(duration_text(row["stages"][stage]) for stage in STAGES),
        )
        for row in found["rows"]
    ]
    title = (
        "A joint step is one move of all UAVs of one mission, with observations, critic maps "
        f"and reward; policy: {found['settings']['policy']}"
    )
    return harness.table_text(title, header, lines)


def table(found: dict[str, Any]) -> str:
    """Return all results as text."""
    return f"{rows_table(found)}\n{memory_text(found) if 'bytes_per_env' in found else ''}"


def memory_text(found: dict[str, Any]) -> str:
    """Return what was found about memory in two lines."""
    few, many = MEMORY_ENVS
    growth = found["growth_over_episodes"]
    first, last = growth["episodes"]
    return (
        f"One more mission takes {found['bytes_per_env'] / 1e6:.2f} MB "
        f"(peak with {many} against {few} missions).\n"
        f"From episode {first} to {last} the memory held grows by "
        f"{growth['growth_bytes'] / 1e6:.2f} MB.\n"
    )


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser("speed.rollout", "Time missions flown as for training.")
    parser.add_argument("--num-envs", default=NUM_ENVS, metavar="E,…", help=f"({NUM_ENVS})")
    parser.add_argument("--policy", choices=POLICIES, default=POLICIES[0], help="(random)")
    parser.add_argument(
        "--episodes",
        type=int,
        default=200,
        metavar="N",
        help="flown to see memory grow; 0 leaves memory out (200)",
    )
    return parser.publish(parser.parse_args(arguments), _measure, table)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    numbers = parse_numbers("--num-envs", options.num_envs, NUM_ENVS, MOST_ENVS)
    if options.episodes and options.episodes <= SETTLED:
        raise ConfigError(f"--episodes {options.episodes}: must be 0, or above {SETTLED}")
    refuse_too_many(config, numbers[-1], device)
    return run(config, numbers, device, options.policy, options.episodes, options.seconds_per_row)


if __name__ == "__main__":
    sys.exit(main())
