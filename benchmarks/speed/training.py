"""Measure the speed of training, and the share of the networks alone.

    python -m benchmarks.speed.training [--steps K] [--precision float32|bfloat16]
        [--against KEY=VALUE] [--out FILE.json]

One transition is one move of one UAV. One training step follows the schedule of the configuration:
missions flown with the current policy, TD(λ) targets, and `data_passes` over the transitions in
`batch_number` batches. Validation, logs and checkpoints are left out. The first step warms up and
does not count; with `compute.cuda_graphs` the first three do not, and the third is recorded.

After each training step the same network calls are made alone, at the same batch sizes and in the
same precision: the actor's inference while flying, the target critic's pass, and forward and
backward passes of actor and critic, with plain modules, without losses and optimisers.
`share_of_network_limit` is the time of those calls over that of the training step, a median over
pairs. `products` compares both with the rate of this machine's matrix products, which is measured
with the sizes of the layers. `--against` trains a second time with another value of a key, in turn
with the first; `times_as_fast` is a median over pairs. Seconds are per training step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import repeat
from statistics import median
from typing import Any

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.harness import peak_memory, quartiles, reset_peak_memory
from benchmarks.helpers.networks_alone import NetworksAlone
from benchmarks.helpers.text import duration_text, number_text, table_text
from benchmarks.helpers.trainings import time_steps, warmed_up
from marl_framework.config.loading import config_to_dict
from marl_framework.stage_timer import OTHER, StageTimer

PRECISIONS = ("auto", "float32", "bfloat16", "float16")


def measure(job: Job) -> dict[str, Any]:
    """Warm up, then time `--steps` training steps, each followed by its networks alone."""
    device, steps, against = job.device, job.options.steps, job.options.against
    reset_peak_memory(device)
    config = with_overrides(job.config, "learning.update_interval=1")
    trainer, warm_up = warmed_up(config, device)
    peak = peak_memory(device)  # before anything is made that training does not need
    timed = time_steps(trainer, StageTimer(device), steps)
    other: Iterator[tuple[float, dict[str, float]]] = repeat((0.0, {}))
    if against:
        other_trainer, _ = warmed_up(with_overrides(config, against), device)
        other = time_steps(other_trainer, StageTimer(device), steps)
    alone = NetworksAlone(config, device)
    transitions = config.schedule.transitions_per_step
    missions = config.schedule.rollouts_per_step * config.environment.num_envs
    results: dict[str, Any] = {
        "precision": str(trainer.algorithm.precision).removeprefix("torch."),
        "peak_memory_bytes": peak,
        "transitions_per_training_step": transitions,
        "settings": {
            "steps": steps,
            "warm_up_steps": warm_up,
            "missions_per_training_step": missions,
            "inference_batches": _runs(alone.calls.inference),
            "target_batches": _runs(alone.calls.targets),
            "learning_batches": _runs(alone.calls.learning),
            "peak_memory": "tensors" if device.type == "cuda" else "whole process, libraries too",
            "configuration": config_to_dict(config),
        },
    }
    flops, rate = alone.flops(), alone.product_rate()
    walls, others, stages, networks = [], [], [], []
    for (wall, spent), (other_wall, _) in zip(timed, other, strict=False):
        walls.append(wall)
        others.append(other_wall)
        stages.append({**spent, OTHER: wall - sum(spent.values())})
        networks.append(alone.seconds())
        print(f"step {len(walls)} of {steps}: {wall:.3g} s", file=sys.stderr, flush=True)
        results |= _speeds(walls, stages, networks, transitions, flops)
        results["products"] = {
            "flops_per_s": rate,
            "share_of_networks": results["networks"]["flops_per_s"] / rate,
            "share_of_training": flops / median(walls) / rate,
        }
        if against:
            results["against"] = {
                "override": against,
                "agent_transitions_per_s": transitions / median(others),
                "times_as_fast": median(b / a for a, b in zip(walls, others, strict=True)),
            }
        job.save(results)
    return results


def _speeds(
    walls: Sequence[float],
    stages: Sequence[dict[str, float]],
    networks: Sequence[dict[str, float]],
    transitions: int,
    flops: int,
) -> dict[str, Any]:
    """Return medians over the steps made so far."""
    lower, middle, upper = quartiles(walls)
    limits = [sum(parts.values()) for parts in networks]
    return {
        "agent_transitions_per_s": transitions / middle,
        "seconds_per_training_step": middle,
        "lower_quartile": lower,
        "upper_quartile": upper,
        "stages": _medians(stages),
        "share_of_network_limit": median(a / b for a, b in zip(limits, walls, strict=True)),
        "networks": {
            "seconds": median(limits),
            "agent_transitions_per_s": transitions / median(limits),
            "stages": _medians(networks),
            "flops": flops,
            "flops_per_s": flops / median(limits),
        },
    }


def _medians(records: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(record[name] for record in records) for name in records[0]}


def _runs(sizes: Sequence[int]) -> dict[str, int]:
    """Return the number of calls by batch size."""
    return {str(size): sizes.count(size) for size in dict.fromkeys(sizes)}


def table(results: dict[str, Any]) -> str:
    """Return the results as text."""
    alone = results["networks"]
    wall = results["seconds_per_training_step"]
    lines = [
        ("training step", wall, results["agent_transitions_per_s"]),
        *((f"  {name}", seconds, None) for name, seconds in results["stages"].items()),
        ("networks alone", alone["seconds"], alone["agent_transitions_per_s"]),
        ("  actor's inference", alone["stages"]["inference"], None),
        ("  target critic", alone["stages"]["targets"], None),
        ("  forward and backward", alone["stages"]["learning"], None),
    ]
    rows = [
        (name, duration_text(time), number_text(time / wall, ".1%"), number_text(speed, ",.1f"))
        for name, time, speed in lines
    ]
    settings, products, against = results["settings"], results["products"], ""
    if other := results.get("against"):
        against = (
            f"{other['times_as_fast']:.2f} times as fast as with {other['override']}: "
            f"{other['agent_transitions_per_s']:,.1f} transitions/s.\n"
        )
    return table_text("Medians", ("", "time", "share", "transitions/s"), rows) + (
        f"{results['transitions_per_training_step']} transitions a training step in "
        f"{results['precision']}; {settings['steps']} steps.\n"
        f"Share of the networks' limit: {results['share_of_network_limit']:.1%}. Networks: "
        f"{alone['flops'] / 1e9:,.2f} GFLOP a step, alone at "
        f"{alone['flops_per_s'] / 1e9:,.1f} GFLOP/s.\n"
        f"Matrix products of this machine: {products['flops_per_s'] / 1e9:,.1f} GFLOP/s; the "
        f"networks reach {products['share_of_networks']:.1%} of it, the training step "
        f"{products['share_of_training']:.1%}.\n{against}"
        f"Peak memory: {results['peak_memory_bytes'] / 1e6:,.0f} MB ({settings['peak_memory']}).\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("speed.training", "Time training steps, and their network calls alone.")
    parser.add_key("--precision", "compute.precision", choices=PRECISIONS)
    parser.add_argument("--against", metavar="KEY=VALUE", help="also time this override, in turn")
    parser.add_number("--steps", 5, "timed training steps", 1, 10_000)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
