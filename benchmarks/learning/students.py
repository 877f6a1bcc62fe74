"""What makes a student learn from its teachers? `python -m benchmarks.learning.students`.

Distils the params file (default: params_collective.yaml, whose teachers are `search`) in ways that
differ in one thing each: who makes the moves that teachers label, the loss, and whether a UAV sees
its sector. Then COMA goes on from the first of these students, with and without a pull to
it. All fly the same validation missions of every task greedily, and so do their teachers.

Every run is written as soon as it is done, and a run that the JSON has, with the same
configuration, is not made again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import (
    Parser,
    answer,
    check_between,
    parse_names,
    read_options,
    with_overrides,
)
from benchmarks.helpers.kept_runs import MOST_STEPS, add_runs, begin, read_seeds
from benchmarks.helpers.run_statistics import seeds_text
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.distillation.trainer import Distiller
from marl_framework.planners.team import find_checkpoint
from marl_framework.runs.checkpoint import save_checkpoint
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

SUITE = "students"
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
"""Overrides of a training that starts with the first student; a pull is to that student."""
METRICS = {"roi_entropy": "validation_entropy", "f1": "validation_f1"}

Means = dict[str, dict[str, float]]


def run(
    config: Config, device: torch.device, variants: Sequence[str], seeds: Sequence[int], path: Path
) -> dict[str, Any]:
    """Make the runs that `path` does not have, writing it after each one.

    Args:
        config: the student, with `distillation.rounds` and `learning.training_steps`.
        device: where everything lives.
        variants: names in `DISTILLED` and `CONTINUED`.
        seeds: of `environment.seed`.
        path: the JSON.

    Returns:
        `settings`, `machine` and `runs`: `variant`, `seed`, `seconds` with a validation, and
        `tasks`, means of `METRICS` over the validation missions of each.
    """
    numbers = {"half": config.distillation.rounds // 2, "steps": config.learning.training_steps}
    filled = {
        name: [text.format(**numbers) for text in overrides]
        for name, overrides in (DISTILLED | CONTINUED).items()
    }
    settings = {"variants": filled, "configuration": config_to_dict(config)}
    found = begin(path, settings, device)

    def add(variant: str, seed: int, seconds: float, tasks: Means) -> None:
        entropy = mean(task["roi_entropy"] for task in tasks.values())
        print(f"{variant}, seed {seed}: {entropy:.3f}", file=sys.stderr)
        one = {"variant": variant, "seed": seed, "seconds": seconds, "tasks": tasks}
        found["runs"].append(one)
        harness.write_json(path, SUITE, found)

    for seed in seeds:
        known = {one["variant"] for one in found["runs"] if one["seed"] == seed}
        missing = [name for name in variants if name not in known]
        continued = [name for name in missing if name in CONTINUED]
        for name in DISTILLED:
            if name not in missing and not (name == FIRST and continued):
                continue
            chosen = with_overrides(config, f"environment.seed={seed}", *filled[name])
            student = Distiller(chosen, device)
            learned = distil(student)
            if name in missing:
                add(name, seed, *learned)
            if name == FIRST:
                for more in continued:
                    add(more, seed, *go_on(student, filled[more], device))
    return found


def distil(student: Distiller) -> tuple[float, Means]:
    """Make all rounds; return the time that they took [s], and what the student reaches."""
    start, found = time.perf_counter(), {}
    while not student.is_over():
        found = student.round()  # the last one validates
    reached = {
        lesson.name: {name: found[f"{key}/{lesson.name}"] for name, key in METRICS.items()}
        for lesson in student.lessons
    }
    return time.perf_counter() - start, reached


def go_on(
    student: Distiller, overrides: Sequence[str], device: torch.device
) -> tuple[float, Means]:
    """Train from a student; return the time that it took [s], and what the team reaches."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "student.pt")
        save_checkpoint(file, student.state_dict())
        config = with_overrides(student.config, f"learning.teacher.run={file}", *overrides)
        trainer = Trainer(config, device)
        trainer.start_from(find_checkpoint(file))
        timer, start = StageTimer(device), time.perf_counter()
        while not trainer.is_over():
            trainer.training_step(timer)
    found = {lesson.name: lesson.validate(trainer.algorithm.act) for lesson in student.lessons}
    reached = {
        task: {name: float(values[key]) for name, key in METRICS.items()}
        for task, values in found.items()
    }
    return time.perf_counter() - start, reached


def means(found: Mapping[str, Any], variant: str, metric: str) -> dict[int, float]:
    """Return the mean over tasks that each seed of a variant reaches."""
    return {
        one["seed"]: mean(task[metric] for task in one["tasks"].values())
        for one in found["runs"]
        if one["variant"] == variant
    }


def table(found: Mapping[str, Any]) -> str:
    """Return what each variant reaches as text, with differences to the first, seed by seed."""
    lines = []
    for variant in found["settings"]["variants"]:
        cells = []
        for metric in METRICS:
            first, values = (means(found, name, metric) for name in (FIRST, variant))
            if not values:
                break
            cells.append(f"{mean(values.values()):.3f}")
            shared = [values[seed] - first[seed] for seed in values if seed in first]
            cells.append("" if variant == FIRST or not shared else seeds_text(shared, "+"))
        if cells:
            runs = [one for one in found["runs"] if one["variant"] == variant]
            seconds = harness.number_text(mean(one["seconds"] for one in runs), ".0f")
            lines.append((variant, str(len(runs)), *cells, seconds))
    header = ("variant", "seeds", "ROI entropy [bit]", "change", "F1", "change", "seconds")
    configuration = found["settings"]["configuration"]
    rounds = configuration["distillation"]["rounds"]
    steps = configuration["learning"]["training_steps"]
    title = f"Students after {rounds} rounds, coma after {steps} training steps more"
    return harness.table_text(f"{title}: means over tasks, 95 % intervals", header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser("learning.students", "Compare ways of distilling.", "params_collective.yaml")
    add_runs(parser, DISTILLED | CONTINUED)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="K", help=f"({ROUNDS})")
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="K", help=f"training steps of coma ({STEPS})"
    )
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    variants = parse_names("--variants", options.variants, DISTILLED | CONTINUED)
    seeds = read_seeds(options)
    for name in ("rounds", "steps"):
        check_between(f"--{name}", getattr(options, name), 1, MOST_STEPS)
    config, device, path = read_options(options, SUITE)
    config = with_overrides(
        config,
        f"distillation.rounds={options.rounds}",
        f"learning.training_steps={options.steps}",
        f"evaluation.interval={MOST_STEPS}",  # the last round validates
    )
    found = run(config, device, variants, seeds, path)
    return f"{table(found)}\n{path}"


if __name__ == "__main__":
    sys.exit(main())
