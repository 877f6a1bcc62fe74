"""Measure the speed of flying: joint steps per second, the time of each stage, and memory.

    python -m benchmarks.speed.rollout [--num-envs 1,16,64] [--policy random|actor]

One joint step is one move of all UAVs of one mission, with everything that learning needs: random
draws, the actor's observations, actions, the critic's maps, readings, reward, messages, fusion,
and the rollout that stores them. Whole episodes are collected as in training, so the start of an
episode counts too. The policy `random` chooses evenly among the allowed actions; `actor` is an
untrained network of the configured size. Rows with `compiled` false have `compute.compile` off.

Totals come from episodes without stage timers, stages from other episodes. Stages are seconds per
joint step; `reset` is the start of an episode, spread over its moves. With `compute.cuda_graphs`
the totals are of recorded episodes, the stages of eager ones. `share_of_bandwidth` is the minimum
time for reading and writing over the measured time. Memory is measured in fresh processes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.helpers import harness, processes
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.harness import (
    peak_memory,
    reset_peak_memory,
)
from benchmarks.helpers.least_work import count_work
from benchmarks.helpers.text import duration_text, number_text, quartiles_text, table_text
from marl_framework.algorithms.graphs import WARM_UP, make_graphs
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.device import resolve_precision
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from marl_framework.stage_timer import OTHER, StageTimer
from marl_framework.training.memory import device_memory

NUM_ENVS = "1,16,64"
MOST_ENVS = 2**20
MOST_EAGER = 16  # with more missions plain operators take minutes on a CPU
POLICIES = ("random", "actor")
STAGES = ("draw", "observe", "policy", "critic_maps", "measure", "reward", "hear_and_fuse",
          "reset", OTHER)  # fmt: skip
MEMORY_ENVS = (16, 64)
JOINT_STEP = "A joint step is one move of all UAVs of one mission, including its share of the start"


# Flying -----------------------------------------------------------------------------------


class Flight:
    """Whole episodes of E missions, collected as in training.

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
        graphs = make_graphs(config, device)
        self.recorded = graphs is not None
        precision = resolve_precision(config.compute.precision, device)
        collector = partial(
            RolloutCollector, self.task, len(self.task.metric_names), precision=precision
        )
        self._collector = collector(graphs=graphs)
        self._eager = collector()  # for stages, which a recording hides
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
    def stages(self, episodes: int) -> dict[str, float]:
        """Return seconds per joint step in each of `STAGES`: medians over some episodes."""
        clock = StageClock(StageTimer(self.task.device))
        environment, task = self.environment, self.task
        watched: list[tuple[Any, str, str]] = [
            (self, "_policy", "policy"),
            (environment, "draw_step", "draw"),
            (environment.radio, "hear", "hear_and_fuse"),
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
        with ExitStack() as stack:
            for owner, name, stage in watched:
                timed = clock.around(stage, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
            flight = partial(self._eager.collect, self._policy, 0.0)
            spent = [clock.measure(flight) for _ in range(episodes)]
        return {
            stage: median(one.get(stage, 0.0) for one in spent) / self.joint_steps
            for stage in STAGES
        }


class StageClock:
    """Times calls by stage; a call inside a stage belongs to the outer stage."""

    def __init__(self, timer: StageTimer) -> None:
        self._timer = timer
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
        """Return the seconds of each stage in one call; `other` is the rest."""
        self._timer.reset()
        work()
        wall = self._timer.wall()
        spent = self._timer.seconds()
        return {**spent, OTHER: max(0.0, wall - sum(spent.values()))}


def measure_row(
    config: Config, num_envs: int, device: torch.device, policy: str, seconds: float
) -> dict[str, Any]:
    """Time episodes of `num_envs` missions for some seconds, then a few by stage.

    Returns:
        A row of the JSON without `share_of_bandwidth`; `episodes` is the number of timed episodes.
    """
    flight = Flight(config, num_envs, device, policy)
    warm_up = WARM_UP + 1 if flight.recorded else 1
    whole = harness.measure(flight.episode, seconds, device, warm_up=warm_up)
    joint_step = whole.per(flight.joint_steps)
    return {
        "num_envs": num_envs,
        "compiled": config.compute.compile,
        "recorded": flight.recorded,
        "joint_steps_per_s": 1 / joint_step.median,
        "seconds_per_joint_step": joint_step.median,
        **joint_step.columns("episodes"),
        "stages": flight.stages(min(3, whole.repeats)),
    }


# Memory -----------------------------------------------------------------------------------


def flight_peak(config: Config, num_envs: int, device: torch.device, policy: str) -> int:
    """Return the peak memory of this process [bytes] after two episodes."""
    Flight(config, 1, device, policy).episode()  # loads libraries and compiled loops
    gc.collect()
    reset_peak_memory(device)
    flight = Flight(config, num_envs, device, policy)
    for _ in range(2):
        flight.episode()
    return peak_memory(device)


def bytes_per_env(config: Config, device: torch.device, policy: str) -> float:
    """Return the growth of the peak memory per mission [bytes]."""
    few, many = MEMORY_ENVS
    cases = [[(config, number, device, policy)] for number in (few, many)]
    (less,), (more,) = (processes.run_at_once(flight_peak, case) for case in cases)
    return (more - less) / (many - few)


def check_missions_fit(config: Config, num_envs: int, device: torch.device) -> None:
    """Check that the maps of the missions alone fit in memory.

    Raises:
        ConfigError: they do not; names the largest number of missions.
    """
    rows, cols = config.geometry.map_shape
    # Own beliefs and the global one in float32, one byte of truth.
    a_mission = rows * cols * (4 * config.missions.most_agents + 5)
    most = device_memory(device)[0] // a_mission
    if num_envs > most:
        raise ConfigError(
            f"--num-envs {num_envs}: the maps need {num_envs * a_mission / 1e9:.1f} GB; "
            f"give at most {most}"
        )


def measure(job: Job) -> dict[str, Any]:
    """Measure all rows, and memory unless `--no-memory` is given.

    Returns:
        `settings`, `must_do` (see `least_work.count_work`), `rows` (see `measure_row`) and
        `bytes_per_env`.

    Raises:
        ConfigError: the missions do not fit in memory.
    """
    config, device, options = job.config, job.device, job.options
    policy = options.policy
    check_missions_fit(config, options.num_envs[-1], device)
    must_do = count_work(config)
    least_seconds = must_do["bytes"] / job.machine["memory_bandwidth"][str(device)]
    results: dict[str, Any] = {
        "settings": {
            "num_envs": options.num_envs,
            "policy": policy,
            "seconds_per_row": options.seconds_per_row,
            "most_missions_without_compiling": MOST_EAGER,
        },
        "must_do": must_do,
        "rows": [],
    }
    for number in options.num_envs:
        for compiled in (True, False) if number <= MOST_EAGER else (True,):
            chosen = with_overrides(config, f"compute.compile={str(compiled).lower()}")
            row = measure_row(chosen, number, device, policy, options.seconds_per_row)
            row["share_of_bandwidth"] = least_seconds / row["seconds_per_joint_step"]
            results["rows"].append(row)
            job.save(results)
            speed = f"{row['joint_steps_per_s']:,.0f} joint steps/s"
            print(f"{number} missions, {compiled=}: {speed}", file=sys.stderr, flush=True)
    if not options.no_memory:
        results["bytes_per_env"] = bytes_per_env(config, device, policy)
    return results


def table(results: dict[str, Any]) -> str:
    """Return the rows as text, and the memory of a mission in a line."""
    header = ("missions", "compiled", "joint steps/s", "a joint step", "quartiles",
              "of the bandwidth", *(stage.replace("_", " ") for stage in STAGES))  # fmt: skip
    lines = [
        (
            f"{row['num_envs']:,}",
            "yes" if row["compiled"] else "no",
            number_text(row["joint_steps_per_s"], ",.0f"),
            duration_text(row["seconds_per_joint_step"]),
            quartiles_text(row),
            number_text(row["share_of_bandwidth"], ".1%"),
            *(duration_text(row["stages"][stage]) for stage in STAGES),
        )
        for row in results["rows"]
    ]
    title = f"{JOINT_STEP}; policy: {results['settings']['policy']}"
    text = table_text(title, header, lines)
    if "bytes_per_env" in results:
        few, many = MEMORY_ENVS
        text += (
            f"One more mission takes {results['bytes_per_env'] / 1e6:.2f} MB "
            f"(peak with {many} against {few} missions).\n"
        )
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("speed.rollout", "Time missions flown as for training.")
    parser.add_numbers("--num-envs", NUM_ENVS, "missions at once", MOST_ENVS)
    parser.add_argument("--policy", choices=POLICIES, default=POLICIES[0], help="(random)")
    parser.add_argument("--no-memory", action="store_true", help="skip the memory of a mission")
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
