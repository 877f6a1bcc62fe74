"""Count the GPU kernels and memory of a training, without a GPU.

    python -m benchmarks.speed.kernel_budget [--config FILE] [--out FILE.json]

One training step and one validation run on a simulated GPU (`helpers.pretend_gpu`), with Triton
kernels and with plain operators, and both again with all channels of params_collective.yaml,
predictions included. A joint step is one move of every UAV of one mission; its kernels serve all
missions at once. The bytes that Triton kernels move are counted from missions flown at random. The
kernels that libraries start for convolutions are an estimate.
"""

from __future__ import annotations

import sys
from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.least_work import count_work
from benchmarks.helpers.operator_costs import OperatorCost, size_of, tensors_in
from benchmarks.helpers.pretend_gpu import GPU, PretendGpu, pretend_gpu
from benchmarks.helpers.text import table_text
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.kernels.versions import Version
from marl_framework.training.memory import memory_estimate, peak
from marl_framework.training.trainer import Trainer

ROLLOUT = ("reset", "observe", "act", "choose", "critic maps", "draw", "move", "fuse", "rollout")
"""Stages of flying; the last is the rest."""
MEMORY = (24, 40, 80, 139)
"""Memory of common GPUs [GB]."""
STEP, MOST = 64, 2**15
"""Step and limit of the tried numbers of missions."""


def operator_costs(config: Config) -> dict[str, Callable[[tuple[Any, ...]], OperatorCost]]:
    """Return the cost of each window operator: kernels, and the mean bytes of flown missions.

    A mission's readings are read from memory once, because all that hear them do so together.
    """
    work = count_work(with_overrides(config, "learning.symmetries=false"))
    cells, seen, updated = (work[f"cells_{name}"] for name in ("measured", "seen", "updated"))

    def small(pooled: torch.Tensor, tracks: bool) -> int:
        """Return the bytes of maps on the lattice: maps and their parts, read and written."""
        return (1 + tracks) * 6 * pooled.numel() * pooled.element_size()

    def maps(beliefs: torch.Tensor, touched: float, prior: float | None) -> float:
        """Return the bytes of beliefs: touched cells read and written, or all cells written."""
        return 8 * touched * len(beliefs) if prior is None else 4 * beliefs.numel()

    def read(arguments: tuple[Any, ...]) -> OperatorCost:
        *_, readings, pooled = arguments  # windows are written whole
        moved = readings.numel() + 4 * pooled.numel()
        return 1, len(readings) * cells + moved  # truth 1; bits are drawn, not read

    def own(arguments: tuple[Any, ...]) -> OperatorCost:
        moved = maps(arguments[5], updated, arguments[-1])
        return 2, len(arguments[0]) * cells + moved + small(arguments[6], arguments[-2])

    def team(arguments: tuple[Any, ...]) -> OperatorCost:
        moved = maps(arguments[4], seen, arguments[-1])
        return 2, len(arguments[0]) * cells + moved + small(arguments[5], arguments[-2])

    def once(arguments: tuple[Any, ...]) -> OperatorCost:
        """Return the cost of an operator that touches each tensor once."""
        return 1, sum(map(size_of, tensors_in(arguments)))

    names = {"read_windows": read, "fuse_own": own, "fuse_global": team}
    names |= dict.fromkeys(("draw_actor_maps", "draw_critic_maps", "choose_actions"), once)
    return {f"marl_framework.{name}": cost for name, cost in names.items()}


def count(config: Config, triton: bool) -> dict[str, Any]:
    """Count one training step and one validation.

    Args:
        config: of the training.
        triton: whether Triton kernels run; else plain operators.

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
        task.reset()  # allocates the buffers
        with gpu.stage("rollout"), FlopCounterMode(display=False) as acting:
            rollout = trainer.collectors[0].collect(
                trainer.algorithm.act, 0.1, config.schedule.rollouts_per_step
            )
        peaks["rollout"] = gpu.restart_peak()
        with gpu.stage("update"), FlopCounterMode(display=False) as learning:
            trainer.algorithm.update(rollout, 0.1, task.generator)
        peaks["update"] = gpu.restart_peak()
        del rollout
        with gpu.reads_allowed(), gpu.stage("validation"):
            trainer.validation.fly()
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
    """Return the largest number of missions that fit a GPU's memory, by the doctor's estimate.

    Batches grow with the missions, so that a training step still takes all their transitions. A
    tenth of the memory stays free, for CUDA itself and for gaps between tensors.
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
    """Return a configuration with the additional channels of a params file."""
    observation = load_config(params).observation
    seen = observation.actor_channels + observation.critic_only_channels
    return with_overrides(config, *(f"observation.{name}=true" for name in seen))


def table(results: dict[str, Any]) -> str:
    """Return the results as text."""
    paths = results["paths"]
    rows = []
    for name in (*ROLLOUT, "joint step"):
        cells = [p["joint_step"] if name == "joint step" else p["stages"][name] for p in paths]
        numbers = ((f"{c['kernels']:.1f}", f"{c['megabytes']:.3f}") for c in cells)
        rows.append((name, *(text for pair in numbers for text in pair)))
    header = [f"{p['path']}: {unit}" for p in paths for unit in ("kernels", "MB a mission")]
    text = table_text("A joint step", ("", *header), rows)
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
    text += table_text("A training step", ("", *header, "GB estimated"), rows)
    rows = [(p["path"], *(f"{p['most_missions'][str(size)]:,}" for size in MEMORY)) for p in paths]
    header = [f"{size} GB" for size in MEMORY]
    return text + table_text("Most missions at once", ("", *header), rows)


def measure(job: Job) -> dict[str, Any]:
    """Count all paths; return `paths`, see `count`, with `path` and `most_missions`."""
    sees_more = with_channels_of(job.config, "params_collective.yaml")
    paths = [
        {
            "path": name,
            **count(counted, triton),
            "most_missions": {str(size): most_missions(counted, triton, size) for size in MEMORY},
        }
        for name, counted, triton in (
            ("kernels", job.config, True),
            ("predicted", sees_more, True),
            ("plain", job.config, False),
            ("predicted_plain", sees_more, False),
        )
    ]
    return {"paths": paths}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    description = "Count the GPU kernels and memory of a training."
    parser = Parser("speed.kernel_budget", description, "params_gpu.yaml", device=False)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
