"""Compare the speed of other libraries on this machine: `python -m benchmarks.speed.comparison`.

    pip install vmas torchrl benchmarl jaxmarl     # any of them, into the same environment
    python -m benchmarks.speed.comparison [--num-envs 1,64] [--contenders ours,vmas]

Each contender runs in its own process, on the CPU, on a task that it ships with. The tasks differ:
ours draws and fuses maps, and its observations are stacks of maps; the others move points and
return vectors. So the figures show the speed of a library as it is, not the quality of its code.
An agent step is one move of one agent with observation and reward.

`acting` is random actions without learning. `learning` is a whole training: acting with a network,
and the library's default updates for a batch of that many transitions.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple

import torch

from benchmarks.helpers import harness, processes
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.harness import CPU
from benchmarks.helpers.random_missions import random_missions
from benchmarks.helpers.text import number_text, table_text
from marl_framework.command_line import usable_cores
from marl_framework.config.model import Config
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

NUM_ENVS = "1,64,1024"
MOST_ENVS = 2**20
_MOVES = 15
LEARNING_ENVS = 64
_ITERATIONS = (1, 4)  # of two trainings; their difference leaves out the start


class Speed(NamedTuple):
    """Number of agent steps of a call, and its duration."""

    agent_steps: int
    timing: harness.Timing


# Acting -----------------------------------------------------------------------------------


def ours(config: Config, num_envs: int, seconds: float) -> Speed:
    """Fly whole missions with random actions, including the start."""
    env, episode, _ = random_missions(config, num_envs)
    steps = num_envs * env.n_agents * env.episode_length
    return Speed(steps, harness.measure(episode, seconds))


def vmas(config: Config, num_envs: int, seconds: float) -> Speed:
    """Step VMAS's `sampling`: agents with lidar take samples of a field."""
    env = import_module("vmas").make_env("sampling", num_envs=num_envs, device="cpu", seed=0)
    env.reset()

    def steps() -> None:
        for _ in range(_MOVES):
            env.step(env.get_random_actions())

    return Speed(num_envs * env.n_agents * _MOVES, harness.measure(steps, seconds))


def torchrl(config: Config, num_envs: int, seconds: float) -> Speed:
    """Roll out the same scenario with TorchRL."""
    env = import_module("torchrl.envs").VmasEnv("sampling", num_envs=num_envs, seed=0)

    def steps() -> None:
        env.rollout(_MOVES, break_when_any_done=False)

    return Speed(num_envs * env.n_agents * _MOVES, harness.measure(steps, seconds))


def jaxmarl(config: Config, num_envs: int, seconds: float) -> Speed:
    """Step JaxMARL's `MPE_simple_spread_v3`, compiled, over a scan."""
    jax = import_module("jax")
    env = import_module("jaxmarl").make("MPE_simple_spread_v3")
    spaces = {agent: env.action_space(agent) for agent in env.agents}

    def move(carry: Any, key: Any) -> Any:
        keys = jax.random.split(key, (2, num_envs))
        act = {agent: jax.vmap(space.sample)(keys[0]) for agent, space in spaces.items()}
        seen, states, reward, _, _ = jax.vmap(env.step)(keys[1], carry, act)
        return states, (seen, reward)

    @jax.jit
    def steps(states: Any, key: Any) -> Any:
        return jax.lax.scan(move, states, jax.random.split(key, _MOVES))

    key = jax.random.PRNGKey(0)
    _, states = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    timing = harness.measure(lambda: jax.block_until_ready(steps(states, key)), seconds)
    return Speed(num_envs * len(env.agents) * _MOVES, timing)


# Learning ---------------------------------------------------------------------------------


def ours_learning(config: Config, num_envs: int, seconds: float) -> Speed:
    """Train COMA as configured."""
    trainer = Trainer(with_overrides(config, f"environment.num_envs={num_envs}"), CPU)
    timer = StageTimer(CPU)
    before = trainer.episodes
    timing = harness.measure(lambda: trainer.make_steps(timer), seconds)
    missions = (trainer.episodes - before) // (timing.repeats + 1)
    return Speed(missions * trainer.task.n_agents * trainer.task.episode_length, timing)


def benchmarl(config: Config, num_envs: int, seconds: float) -> Speed:
    """Train BenchMARL's MAPPO on VMAS's `sampling` with its own settings, 15 moves a batch."""
    frames = num_envs * _MOVES
    times = []
    for iterations in _ITERATIONS:
        with tempfile.TemporaryDirectory() as folder:
            experiment = _benchmarl_experiment(num_envs, frames, iterations, folder)
            start = perf_counter()
            experiment.run()
            times.append(perf_counter() - start)
    agents = sum(len(group) for group in experiment.group_map.values())
    seconds_each = (times[1] - times[0]) / (_ITERATIONS[1] - _ITERATIONS[0])
    return Speed(frames * agents, harness.Timing(seconds_each, seconds_each, seconds_each, 1))


def _benchmarl_experiment(num_envs: int, frames: int, iterations: int, folder: str) -> Any:
    environments, experiments = import_module("benchmarl.environments"), "benchmarl.experiment"
    config = import_module(experiments).ExperimentConfig.get_from_yaml()
    config.max_n_iters, config.max_n_frames = iterations, None
    config.on_policy_n_envs_per_worker = num_envs
    config.on_policy_collected_frames_per_batch = frames
    config.on_policy_minibatch_size = max(1, frames // 5)
    config.evaluation, config.render, config.create_json = False, False, False
    config.loggers, config.save_folder = [], folder
    models = import_module("benchmarl.models.mlp").MlpConfig
    return import_module(experiments).Experiment(
        task=environments.VmasTask.SAMPLING.get_from_yaml(),
        algorithm_config=import_module("benchmarl.algorithms").MappoConfig.get_from_yaml(),
        model_config=models.get_from_yaml(),
        critic_model_config=models.get_from_yaml(),
        seed=0,
        config=config,
    )


class Contender(NamedTuple):
    """A library and a task."""

    package: str
    kind: str
    task: str
    measure: Callable[[Config, int, float], Speed]


CONTENDERS = {
    "ours": Contender("marl_framework", "acting", "mapping mission, 4 UAVs", ours),
    "vmas": Contender("vmas", "acting", "sampling, 3 agents", vmas),
    "torchrl": Contender("torchrl", "acting", "VMAS sampling, 3 agents", torchrl),
    "jaxmarl": Contender("jaxmarl", "acting", "MPE simple spread, 3 agents", jaxmarl),
    "ours_learning": Contender("marl_framework", "learning", "COMA, maps", ours_learning),
    "benchmarl": Contender("benchmarl", "learning", "MAPPO, VMAS sampling", benchmarl),
}


def measure_row(name: str, config: Config, num_envs: int, seconds: float) -> dict[str, Any]:
    """Measure one contender in this process; return a row of the JSON."""
    contender = CONTENDERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other libraries
        results = contender.measure(config, num_envs, seconds)
    return {
        "contender": name,
        "package": contender.package,
        "version": version(contender.package),
        "kind": contender.kind,
        "task": contender.task,
        "num_envs": num_envs,
        "agent_steps_per_s": results.agent_steps / results.timing.median,
        "lower": results.agent_steps / results.timing.upper,
        "upper": results.agent_steps / results.timing.lower,
        "repeats": results.timing.repeats,
    }


def is_installed(package: str) -> bool:
    """Return whether a package can be measured."""
    return find_spec(package) is not None


def measure(job: Job) -> dict[str, Any]:
    """Measure all installed contenders; return `settings`, `rows` and `absent` packages."""
    seconds, rows, absent = job.options.seconds_per_row, [], []
    for name in job.options.contenders:
        contender = CONTENDERS[name]
        if not is_installed(contender.package):
            absent.append(contender.package)
            continue
        for number in job.options.num_envs if contender.kind == "acting" else [LEARNING_ENVS]:
            rows.append(processes.run_alone(measure_row, name, job.config, number, seconds))
            speed = f"{rows[-1]['agent_steps_per_s']:,.0f} agent steps/s"
            print(f"{name}, {number} environments: {speed}", file=sys.stderr, flush=True)
    settings = {"num_envs": job.options.num_envs, "seconds_per_row": seconds}
    return {"settings": settings, "rows": rows, "absent": absent}


def table(results: dict[str, Any]) -> str:
    """Return the rows as text."""
    header = ("library", "version", "what", "task", "environments", "agent steps/s", "quartiles")
    lines = [
        (
            row["package"],
            row["version"],
            row["kind"],
            row["task"],
            f"{row['num_envs']:,}",
            number_text(row["agent_steps_per_s"], ",.0f"),
            f"{row['lower']:,.0f} … {row['upper']:,.0f}",
        )
        for row in results["rows"]
    ]
    text = table_text("Tasks differ, so read these with care", header, lines)
    if results["absent"]:
        text += f"not installed here: {', '.join(results['absent'])}\n"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "speed.comparison", "Time this library and others.", "params_fast.yaml", device=False
    )
    parser.add_numbers("--num-envs", NUM_ENVS, "environments at once", MOST_ENVS)
    parser.add_names("--contenders", CONTENDERS)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    torch.set_num_threads(usable_cores())
    sys.exit(main())
