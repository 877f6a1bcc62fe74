"""Compare ways of distilling: `python -m benchmarks.learning.students`.

Distils the params file (default: params_collective.yaml, whose teachers are `search`) in ways that
differ in one thing each: the policy that makes the labelled moves, the loss, and whether a UAV sees
its sector. Then COMA continues from the first of these students, with and without a pull towards
it. All students fly the same validation missions of every task greedily.

Each run is written when it ends, and a run that the JSON already has is not repeated.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.trainings import MOST_STEPS, Cache, add_seeds, add_steps, differences_table
from marl_framework.distillation.trainer import Distiller
from marl_framework.planners.team import find_checkpoint
from marl_framework.runs.checkpoint import save_checkpoint
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

ROUNDS, STEPS = 8, 40
FIRST = "on_policy"
DISTILLED = {
    FIRST: ["distillation.teacher_rounds=0"],
    "annealed": ["distillation.teacher_share=1", "distillation.teacher_rounds={half}"],
    "off_policy": ["distillation.teacher_share=1", "distillation.teacher_rounds=1000000"],
    "reverse": ["distillation.teacher_rounds=0", "distillation.loss=reverse"],
    "without_sector": [
        "distillation.teacher_rounds=0",
        "observation.sector=false",
        "observation.centred_sector=false",
    ],
}
"""Overrides; `{half}` stands for half of the rounds."""
CONTINUED = {
    "coma": [],
    "coma_pulled": ["learning.teacher.weight=1"],
    "coma_pulled_less": ["learning.teacher.weight=1", "learning.teacher.anneal_steps={steps}"],
}
"""Overrides of a training that continues from the first student; the pull is towards it."""
METRICS = {"roi_entropy": "validation_entropy", "f1": "validation_f1"}

Reached = dict[str, Any]
"""`seconds` of a training with its validation, and `tasks`: means of `METRICS` by task."""


def measure(job: Job) -> dict[str, Any]:
    """Distil and continue what the JSON lacks.

    Returns:
        `settings` and `runs`: `variant`, `seed`, and the content of `Reached`.
    """
    # Only the last round validates.
    config = with_overrides(job.config, f"evaluation.interval={MOST_STEPS}")
    numbers = {"half": config.distillation.rounds // 2, "steps": config.learning.training_steps}
    variants = {
        name: [text.format(**numbers) for text in overrides]
        for name, overrides in (DISTILLED | CONTINUED).items()
    }
    cache = Cache(replace(job, config=config), variants)
    for seed in job.options.seeds:
        missing = [v for v in job.options.variants if not cache.has(variant=v, seed=seed)]
        continued = [name for name in missing if name in CONTINUED]
        for name in DISTILLED:
            if name not in missing and not (name == FIRST and continued):
                continue
            changes = [f"environment.seed={seed}", *variants[name]]
            student = Distiller(with_overrides(config, *changes), job.device)
            reached = distil(student)
            if name in missing:
                cache.add(variant=name, seed=seed, **reached)
            for more in continued if name == FIRST else ():
                reached = continue_training(student, variants[more], job.device)
                cache.add(variant=more, seed=seed, **reached)
    return cache.results


def distil(student: Distiller) -> Reached:
    """Make all rounds; the last one validates."""
    start, results = time.perf_counter(), {}
    while not student.is_over():
        results = student.round()
    tasks = {
        lesson.name: {name: results[f"{key}/{lesson.name}"] for name, key in METRICS.items()}
        for lesson in student.lessons
    }
    return {"seconds": time.perf_counter() - start, "tasks": tasks}


def continue_training(
    student: Distiller, overrides: Sequence[str], device: torch.device
) -> Reached:
    """Train a team that starts with the weights of a student."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "student.pt")
        save_checkpoint(file, student.state_dict())
        config = with_overrides(student.config, f"learning.teacher.run={file}", *overrides)
        trainer = Trainer(config, device)
        trainer.start_from(find_checkpoint(file))
        timer, start = StageTimer(device), time.perf_counter()
        while not trainer.is_over():
            trainer.make_steps(timer)
    results = {lesson.name: lesson.validate(trainer.algorithm.act) for lesson in student.lessons}
    tasks = {
        task: {name: float(values[key]) for name, key in METRICS.items()}
        for task, values in results.items()
    }
    return {"seconds": time.perf_counter() - start, "tasks": tasks}


def table(results: Mapping[str, Any]) -> str:
    """Return the results of each variant as text, with differences to the first, seed by seed."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    for variant in results["settings"]["variants"]:
        for run in (one for one in results["runs"] if one["variant"] == variant):
            of = values.setdefault(variant, {name: {} for name in (*METRICS, "seconds")})
            of["seconds"][run["seed"]] = run["seconds"]
            for name in METRICS:
                of[name][run["seed"]] = mean(task[name] for task in run["tasks"].values())
    configuration = results["settings"]["configuration"]
    rounds = configuration["distillation"]["rounds"]
    steps = configuration["learning"]["training_steps"]
    title = f"Students after {rounds} rounds, coma after {steps} training steps more"
    return differences_table(f"{title}: means over tasks, 95 % intervals", "variant", values, FIRST)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.students", "Compare ways of distilling.", "params_collective.yaml")
    parser.add_names("--variants", DISTILLED | CONTINUED)
    add_seeds(parser)
    parser.add_key("--rounds", "distillation.rounds", ROUNDS, metavar="K")
    add_steps(parser, STEPS)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
