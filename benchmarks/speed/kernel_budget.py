"""What a training asks of a GPU: kernels and bytes by stage, and bytes alive; no GPU is needed.

    python -m benchmarks.speed.kernel_budget [--config FILE] [--out FILE.json]

One training step and one validation run on a GPU that is not there (`helpers.pretend_gpu`), with
Triton kernels and with plain operators, both again for networks that see what those of
params_student.yaml see, predictions too. A joint step is one move of every UAV of one mission; its
kernels serve all missions at once. What Triton's kernels move is counted from missions flown at
random. Kernels that libraries start for convolutions are an estimate.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, with_overrides
from benchmarks.helpers.least_work import count_work
from benchmarks.helpers.operator_costs import OperatorCost, size_of, tensors_in
from benchmarks.helpers.pretend_gpu import GPU, PretendGpu, pretend_gpu
from marl_framework.config.loading import config_to_dict, load_config
from marl_framework.config.model import Config
from marl_framework.kernels.versions import Version
from marl_framework.training.memory import memory_estimate, peak
from marl_framework.training.trainer import Trainer

ROLLOUT = ("reset", "observe", "act", "choose", "critic maps", "draw", "move", "fuse", "rollout")
"""Stages of flying; the last is what none of the others counts."""
MEMORY = (24, 40, 80, 139)
"""Gigabytes of GPUs that people have."""
STEP, MOST = 64, 2**15
"""Missions at once are tried in steps, up to a limit."""


def operator_costs(config: Config) -> dict[str, Callable[[tuple[Any, ...]], OperatorCost]]:
    """Return what the window operators cost: kernels, and bytes at the mean of flown missions.

    A mission's readings come once from memory: those who hear them ask for them side by side.
    """
    work = count_work(with_overrides(config, "learning.symmetries=false"))
    cells, seen, updated = (work[f"cells_{name}"] for name in ("measured", "seen", "updated"))

    def small(pooled: torch.Tensor, tracks: bool) -> int:
        """Bytes of maps on the lattice: read, written, and their parts written and read."""
        return (1 + tracks) * 6 * pooled.numel() * pooled.element_size()

    def maps(beliefs: torch.Tensor, touched: float, prior: float | None) -> float:
        """Bytes of beliefs: cells of a mission read and written, or all written."""
        return 8 * touched * len(beliefs) if prior is None else 4 * beliefs.numel()

    def read(arguments: tuple[Any, ...]) -> OperatorCost:
        readings, pooled = arguments[6:8]  # windows are written whole
        moved = readings.numel() + 4 * pooled.numel()
        return 1, len(readings) * cells + moved  # truth 1; bits are drawn, not read

    def own(arguments: tuple[Any, ...]) -> OperatorCost:
        moved = maps(arguments[5], updated, arguments[-1])
        return 2, len(arguments[0]) * cells + moved + small(arguments[6], arguments[-2])

    def team(arguments: tuple[Any, ...]) -> OperatorCost:
        moved = maps(arguments[4], seen, arguments[-1])
        return 2, len(arguments[0]) * cells + moved + small(arguments[5], arguments[-2])

    def once(arguments: tuple[Any, ...]) -> OperatorCost:
        """Count what an operator reads or writes, but does not do both with."""
        return 1, sum(map(size_of, tensors_in(arguments)))

    names = {"read_windows": read, "fuse_own": own, "fuse_global": team}
    names |= dict.fromkeys(("draw_actor_maps", "draw_critic_maps", "choose_actions"), once)
    return {f"marl_framework.{name}": cost for name, cost in names.items()}


def count(config: Config, triton: bool) -> dict[str, Any]:
    """Count one training step and one validation.

    Args:
        config: of the training.
        triton: whether the mission's kernels run; else plain operators.

    Returns:
        `stages` of a joint step and `joint_step` with `kernels` and `megabytes`; `update` and
        `training_step` with `kernels`; `transition` with the networks' operations; `peak_bytes` of
        flying, learning and validating, `estimated_bytes` by purpose and `estimated_peak_bytes`.
    """
    config = with_overrides(
        config, f"compute.compile={str(triton).lower()}", "compute.cuda_graphs=false"
    )
    gpu = PretendGpu(values=False, costs=operator_costs(config) if triton else {})
    peaks = {}
    with pretend_gpu(gpu, triton):
        trainer = Trainer(config, GPU)
        task, environment = trainer.task, trainer.task.environment
        assert (environment.fusion.version is Version.TRITON) is triton
        for owner, method, stage in (
            (task, "reset", "reset"),
            (task, "observe", "observe"),
            (trainer.algorithm, "act", "act"),
            (task, "draw_actions" if triton else "choose_in_order", "choose"),
            (task, "critic_maps", "critic maps"),
            (environment, "draw_step", "draw"),
            (environment.fusion, "update", "fuse"),
            (environment, "step", "move"),
        ):
            gpu.watch(owner, method, stage, within=("rollout", "move"))
        task.reset()  # makes the buffers, once for all
        with gpu.stage("rollout"), FlopCounterMode(display=False) as acting:
            rollout = trainer.collector.collect(
                trainer.algorithm.act, 0.1, config.schedule.rollouts_per_step
            )
        peaks["rollout"] = gpu.restart_peak()
        with gpu.stage("update"), FlopCounterMode(display=False) as learning:
            trainer.algorithm.update(rollout, 0.1, task.generator)
        peaks["update"] = gpu.restart_peak()
        del rollout
        with gpu.reads_allowed(), gpu.stage("validation"):
            trainer.fly_validation()
        peaks["validation"] = gpu.restart_peak()
        estimate = memory_estimate(config, device=GPU)
    steps = config.missions.episode_length * config.schedule.rollouts_per_step
    stages = {
        name: {
            "kernels": gpu.kernels[name] / steps,
            "megabytes": gpu.bytes[name] / steps / config.environment.num_envs / 1e6,
        }
        for name in ROLLOUT
    }
    flown = sum(gpu.kernels[name] for name in ROLLOUT)
    return {
        "stages": stages,
        "joint_step": {
            unit: sum(row[unit] for row in stages.values()) for unit in ("kernels", "megabytes")
        },
        "update": {"kernels": gpu.kernels["update"]},
        "transition": {
            "flops_acting": acting.get_total_flops() / config.schedule.transitions_per_step,
            "flops_learning": learning.get_total_flops() / config.schedule.transitions_per_step,
        },
        "training_step": {"kernels": flown + gpu.kernels["update"]},
        "peak_bytes": peaks,
        "estimated_bytes": estimate,
        "estimated_peak_bytes": peak(estimate),
    }


def most_missions(config: Config, triton: bool, gigabytes: int) -> int:
    """Return how many missions at once a GPU has memory for, by the doctor's estimate.

    Batches grow with the missions, so that a training step still takes all their transitions. A
    tenth of the memory stays free: for CUDA itself and the gaps between tensors.
    """
    learning, missions = config.learning, config.environment.num_envs

    def fits(number: int) -> bool:
        chosen = with_overrides(
            config,
            f"compute.compile={str(triton).lower()}",
            f"environment.num_envs={number}",
            f"learning.batch_size={learning.batch_size * number // missions}",
        )
        return peak(memory_estimate(chosen, device=GPU)) <= 0.9e9 * gigabytes

    with pretend_gpu(PretendGpu(values=False), triton):
        return STEP * bisect(range(STEP, MOST, STEP), False, key=lambda number: not fits(number))


def with_channels_of(config: Config, params: str) -> Config:
    """Return a configuration whose networks see all that those of a params file see, too."""
    observation = load_config(params).observation
    seen = observation.actor_channels + observation.critic_only_channels
    return with_overrides(config, *(f"observation.{name}=true" for name in seen))


def table(found: dict[str, Any]) -> str:
    """Return the results as text."""
    paths = found["paths"]
    rows = []
    for name in (*ROLLOUT, "joint step"):
        cells = [p["joint_step"] if name == "joint step" else p["stages"][name] for p in paths]
        numbers = ((f"{c['kernels']:.1f}", f"{c['megabytes']:.3f}") for c in cells)
        rows.append((name, *(text for pair in numbers for text in pair)))
    header = [f"{p['path']}: {unit}" for p in paths for unit in ("kernels", "MB a mission")]
    text = harness.table_text("A joint step", ("", *header), rows)
    rows = [
        (
            p["path"],
            f"{p['update']['kernels']:,}",
            f"{p['training_step']['kernels']:,}",
            *(f"{size / 1e9:.2f}" for size in p["peak_bytes"].values()),
            f"{p['estimated_peak_bytes'] / 1e9:.2f}",
        )
        for p in paths
    ]
    header = ["kernels of an update", "of a training step"]
    header += [f"GB in {name}" for name in paths[0]["peak_bytes"]]
    text += harness.table_text("A training step", ("", *header, "GB estimated"), rows)
    rows = [(p["path"], *(f"{p['most_missions'][str(size)]:,}" for size in MEMORY)) for p in paths]
    header = [f"{size} GB" for size in MEMORY]
    return text + harness.table_text("Most missions at once", ("", *header), rows)


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "speed.kernel_budget", "Count what a GPU is asked for.", "params_gpu.yaml", device=False
    )
    return parser.publish(parser.parse_args(arguments), _measure, table)


def _measure(_: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    sees_more = with_channels_of(config, "params_student.yaml")
    paths = [
        {
            "path": name,
            **count(counted, triton),
            "most_missions": {str(size): most_missions(counted, triton, size) for size in MEMORY},
        }
        for name, counted, triton in (
            ("kernels", config, True),
            ("predicted", sees_more, True),
            ("plain", config, False),
            ("predicted_plain", sees_more, False),
        )
    ]
    return {
        "paths": paths,
        "settings": {"configuration": config_to_dict(config)},
        "machine": harness.announce_machine(device),
    }


if __name__ == "__main__":
    sys.exit(main())
