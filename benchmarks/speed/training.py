"""How fast a team learns: transitions a second, and how much of that time is networks alone.

    python -m benchmarks.training [--steps K] [--precision float32|bfloat16] [--out FILE.json]

One transition is one move of one UAV. One training step is what the configuration's schedule says:
missions flown with the current policy, TD(λ) targets, and `data_passes` over the transitions in
`batch_number` batches. The trainer itself makes the steps; validation, logs and checkpoints are
left out. The first step warms up and does not count.

After each training step the same network calls are made alone, at the same batch sizes and in the
same precision: the actor's inference while flying, the target critic's pass, and forward and
backward passes of actor and critic, with plain modules and neither losses nor optimisers.
`share_of_network_limit` is the time of those calls over that of the training step, a median over
pairs. Seconds are per training step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import harness
from benchmarks.harness import duration_text, number_text, quartiles
from marl_framework.algorithms.coma import _TARGET_CHUNK
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict, config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import autocast, describe_device, resolve_device
from marl_framework.networks.convolutional import ActorNetwork, CriticNetwork
from marl_framework.training.timing import OTHER, StageTimer
from marl_framework.training.trainer import Trainer

SUITE = "training"
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
MOST_STEPS = 10_000


# Memory -----------------------------------------------------------------------------------


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` start anew, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # what is resident now becomes the peak
    except OSError:
        return


def peak_memory(device: torch.device) -> int:
    """Return the most memory held so far [bytes]: on a GPU by tensors, on a CPU by the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _process_memory("VmHWM")


def held_memory(device: torch.device) -> int:
    """Return the memory held now [bytes]: on a GPU by tensors, on a CPU by the process."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _process_memory("VmRSS")


def _process_memory(name: str) -> int:
    """Return an entry of Linux's report on this process [bytes]."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def flops_of(work: Callable[[], object]) -> int:
    """Return the floating-point operations of the matrix products and convolutions of some work."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


# Networks alone ---------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkCalls:
    """Batch sizes of all network calls of one training step."""

    inference: tuple[int, ...]
    """Of the actor while flying."""
    targets: tuple[int, ...]
    """Of the target critic."""
    learning: tuple[int, ...]
    """Of critic and actor, forward and backward."""

    @classmethod
    def of(cls, config: Config, rollouts: int) -> NetworkCalls:
        """Return what a configuration asks for, with so many rollouts a training step."""
        learning = config.learning
        team = config.environment.num_envs * config.experiment.missions.n_agents
        transitions = rollouts * config.episode_length * team
        places = torch.arange(transitions)
        batches = places.tensor_split(min(learning.batch_number, transitions))
        return cls(
            inference=(team,) * (rollouts * config.episode_length),
            targets=tuple(len(part) for part in places.split(_TARGET_CHUNK)),
            learning=tuple(len(part) for part in batches) * learning.data_passes,
        )


class NetworksAlone:
    """The network calls of one training step, with plain modules and nothing around them.

    Args:
        trainer: gives sizes, schedule, precision and device.
    """

    def __init__(self, trainer: Trainer) -> None:
        networks, sizes = trainer.config.networks, trainer.algorithm.sizes
        self.calls = NetworkCalls.of(trainer.config, trainer._rollouts_per_step)
        self._device, self._precision = trainer.device, trainer.algorithm.precision
        actor, critic = networks.actor, networks.critic
        self._actor: nn.Module = ActorNetwork(sizes, actor.conv_channels, actor.hidden_dim)
        self._critic: nn.Module = CriticNetwork(sizes, critic.conv_channels, critic.fc1_dim)
        self._actor.to(self._device)
        self._critic.to(self._device)
        most = max(*self.calls.inference, *self.calls.targets, *self.calls.learning)
        self._states = torch.rand(most, sizes.critic_channels, *sizes.shape, device=self._device)
        self._observations = self._states[:, : sizes.actor_channels].contiguous()

    def seconds(self) -> dict[str, float]:
        """Make all calls once; return the seconds of `inference`, `targets` and `learning`."""
        timer = StageTimer(self._device)
        with timer("inference"), torch.no_grad():
            for size in self.calls.inference:
                self._forward(self._actor, self._observations[:size])
        with timer("targets"), torch.no_grad():
            for size in self.calls.targets:
                self._forward(self._critic, self._states[:size])
        with timer("learning"):
            for size in self.calls.learning:
                self._learn(self._critic, self._states[:size])
                self._learn(self._actor, self._observations[:size])
        return timer.seconds()

    def flops(self) -> int:
        """Make all calls once; return their floating-point operations, a multiply-add being 2."""
        return flops_of(self.seconds)

    def _forward(self, network: nn.Module, maps: Tensor) -> Tensor:
        with autocast(self._device, self._precision):
            outputs: Tensor = network(maps)
        return outputs

    def _learn(self, network: nn.Module, maps: Tensor) -> None:
        network.zero_grad(set_to_none=True)
        outputs = self._forward(network, maps)
        outputs.backward(torch.ones_like(outputs))


# The benchmark ----------------------------------------------------------------------------


def run(config: Config, device: torch.device, steps: int) -> dict[str, Any]:
    """Make one training step to warm up, then `steps`, each followed by its networks alone.

    Args:
        config: mission, networks and schedule.
        device: where everything lives.
        steps: training steps that count.

    Returns:
        What the JSON holds; see the module.
    """
    reset_peak_memory(device)
    config = with_overrides(config, "learning.update_interval=1")
    trainer = Trainer(config, device)
    timer = StageTimer(device)
    trainer.training_step(timer)
    timer.wall()  # waits for the device
    peak = peak_memory(device)  # before anything is made that training does not need
    alone = NetworksAlone(trainer)
    flops = alone.flops()
    machine = harness.describe_machine(device)
    flown, walls, stages, networks = trainer.episodes, [], [], []
    for step in range(1, steps + 1):
        timer.reset()
        trainer.training_step(timer)
        walls.append(timer.wall())
        stages.append({**timer.seconds(), OTHER: walls[-1] - sum(timer.seconds().values())})
        networks.append(alone.seconds())
        print(f"step {step} of {steps}: {walls[-1]:.3g} s", file=sys.stderr, flush=True)
    missions = (trainer.episodes - flown) // steps
    transitions = missions * trainer.task.n_agents * trainer.task.episode_length
    lower, middle, upper = quartiles(walls)
    limits = [sum(parts.values()) for parts in networks]
    return {
        "agent_transitions_per_s": transitions / middle,
        "seconds_per_training_step": middle,
        "lower_quartile": lower,
        "upper_quartile": upper,
        "precision": str(trainer.algorithm.precision).removeprefix("torch."),
        "stages": _medians(stages),
        "share_of_network_limit": median(a / b for a, b in zip(limits, walls, strict=True)),
        "networks": {
            "seconds": median(limits),
            "agent_transitions_per_s": transitions / median(limits),
            "stages": _medians(networks),
            "flops": flops,
            "flops_per_s": flops / median(limits),
        },
        "peak_memory_bytes": peak,
        "transitions_per_training_step": transitions,
        "settings": {
            "steps": steps,
            "warm_up_steps": 1,
            "missions_per_training_step": missions,
            "inference_batches": _runs(alone.calls.inference),
            "target_batches": _runs(alone.calls.targets),
            "learning_batches": _runs(alone.calls.learning),
            "left_out": "validation, logs, checkpoints",
            "peak_memory": "tensors" if device.type == "cuda" else "whole process, libraries too",
            "configuration": config_to_dict(config),
        },
        "machine": machine,
    }


def _medians(records: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(record[name] for record in records) for name in records[0]}


def _runs(sizes: Sequence[int]) -> dict[str, int]:
    """Return how often each batch size comes."""
    return {str(size): sizes.count(size) for size in dict.fromkeys(sizes)}


def table(found: dict[str, Any]) -> str:
    """Return the results as text."""
    alone = found["networks"]
    wall = found["seconds_per_training_step"]
    lines = [
        ("training step", wall, found["agent_transitions_per_s"]),
        *((f"  {name}", seconds, None) for name, seconds in found["stages"].items()),
        ("networks alone", alone["seconds"], alone["agent_transitions_per_s"]),
        ("  actor's inference", alone["stages"]["inference"], None),
        ("  target critic", alone["stages"]["targets"], None),
        ("  forward and backward", alone["stages"]["learning"], None),
    ]
    rows = [
        (name, duration_text(time), number_text(time / wall, ".1%"), number_text(speed, ",.1f"))
        for name, time, speed in lines
    ]
    settings = found["settings"]
    return harness.table_text("Medians", ("", "time", "share", "transitions/s"), rows) + (
        f"{found['transitions_per_training_step']} transitions a training step in "
        f"{found['precision']}; {settings['steps']} steps.\n"
        f"Share of the networks' limit: {found['share_of_network_limit']:.1%}. Networks: "
        f"{alone['flops'] / 1e9:,.2f} GFLOP a step, alone at "
        f"{alone['flops_per_s'] / 1e9:,.1f} GFLOP/s.\n"
        f"Peak memory: {found['peak_memory_bytes'] / 1e6:,.0f} MB ({settings['peak_memory']}).\n"
    )


# Command line -----------------------------------------------------------------------------


def with_overrides(config: Config, *overrides: str) -> Config:
    """Return the configuration with `section.key=value` changes, checked like a params file.

    Raises:
        ConfigError: the changed configuration makes no sense.
    """
    return config_from_dict(config_to_dict(config), overrides=overrides)


def add_device(parser: harness.Parser) -> None:
    """Add `--device`, a short form of `--set compute.device=…`."""
    parser.add_argument("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N")


def read_options(options: argparse.Namespace, suite: str) -> tuple[Config, torch.device, Path]:
    """Return the configuration, the device and the output file of a command line.

    Short forms win over `--set`.

    Raises:
        ConfigError: one of them is wrong.
    """
    short = [
        f"networks.{name}={value}"
        for name in ("device", "precision")
        if (value := getattr(options, name, None)) is not None
    ]
    options.overrides = [*options.overrides, *short]
    config = harness.read_config(options)
    device = resolve_device(config.compute.device)
    return config, device, harness.output_file(options.out, suite, device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = harness.Parser(SUITE, "Time training steps, and their network calls alone.")
    add_device(parser)
    parser.add_argument("--precision", choices=PRECISIONS, help="of the networks (as configured)")
    parser.add_argument("--steps", type=int, default=5, metavar="K", help="that count (5)")
    options = parser.parse_args(arguments)
    return harness.answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    if not 1 <= options.steps <= MOST_STEPS:
        raise ConfigError(f"--steps {options.steps}: must lie in 1 … {MOST_STEPS}")
    config, device, path = read_options(options, SUITE)
    print(describe_device(device), flush=True)
    found = run(config, device, options.steps)
    return harness.publish(path, SUITE, found, table)


if __name__ == "__main__":
    sys.exit(main())
