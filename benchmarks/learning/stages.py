"""Compare workers, the collective and its students: `python -m benchmarks.learning.stages`.

Flies the missions of every task of a tasks file with the task's worker (trained on it alone), the
collective (one team for all tasks), the task's student (continued from the collective) and
information gain. In the names of the runs, `{seed}` and `{task}` stand for training seed and task.
docs/distillation.md has the commands that train them.

Each flight is written when it ends, and a flight that the JSON already has is not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers import figures
from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import MOST_SEED, Cache, Run, add_seeds
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.distillation.tasks import read_tasks, with_mission
from marl_framework.evaluation import comparison
from marl_framework.evaluation.flight import evaluate
from marl_framework.evaluation.report import METRICS
from marl_framework.evaluation.suite import digest, finals
from marl_framework.evaluation.suite_results import (
    LABELS,
    change_cells,
    difference,
    summary,
)
from marl_framework.evaluation.worlds import MISSIONS, SEED
from marl_framework.planners.team import Checkpoint, find_checkpoint
from marl_framework.runs.files import read_json

TASKS = Path(__file__).with_suffix(".yaml")
STAGES = ("worker", "collective", "student")
CLASSICAL = "information_gain"
STYLES = {
    "worker": ("o", figures.BLUE),
    "collective": ("s", figures.ORANGE),
    "student": ("^", figures.GREEN),
    CLASSICAL: ("x", figures.PINK),
}
"""Marker and colour of each policy."""


def measure(job: Job) -> dict[str, Any]:
    """Make the flights that the JSON lacks, and drop those that are no longer asked for.

    Returns:
        `settings` and `runs`: `variant` (a stage or `information_gain`), `task`, `seed` (of the
        training, None for information gain), `checkpoint` (its SHA-256), `training_steps`
        (rounds of the collective), and `finals`, a value for each mission by metric.

    Raises:
        ConfigError: a run is missing, or does not fit a task.
    """
    missions, seed = job.options.missions, job.options.seed
    tasks = read_tasks(job.options.tasks)
    asked = _asked(job, tasks)
    flown = {"tasks": tasks, "missions": missions, "seed": seed}
    cache = Cache(job, dict.fromkeys(STYLES, flown))
    cache.runs[:] = [r for r in cache.runs if any(f.items() <= r.items() for f, _ in asked)]
    for flight, team in asked:
        if cache.has(**flight):
            continue
        task, name = flight["task"], flight["variant"]
        mission = with_mission(job.config, with_changes(job.config, tasks[task], task), task)
        teams = {} if team is None else {name: team}
        ready = comparison.prepare(mission, job.device, [name], missions, seed, teams=teams)
        env, planner = ready.environments[name], ready.planners[name]
        record = evaluate(env, planner, missions, seed, keep_maps=0, curves=False)
        cache.add(**flight, finals=finals(record))
    return cache.results


def _asked(job: Job, tasks: Mapping[str, Any]) -> list[tuple[Run, Checkpoint | None]]:
    """Return the identity of each flight and its team; None for information gain."""
    asked: list[tuple[Run, Checkpoint | None]] = []
    for task in tasks:
        for stage in STAGES:
            for seed in job.options.seeds:
                pattern = getattr(job.options, stage)
                run = pattern.replace("{seed}", str(seed)).replace("{task}", task)
                team = find_checkpoint(run)
                flight = {
                    "variant": stage,
                    "task": task,
                    "seed": seed,
                    "checkpoint": digest(team),
                    "training_steps": training_steps(run),
                }
                asked.append((flight, team))
        nobody = dict.fromkeys(("seed", "checkpoint", "training_steps"))
        asked.append(({"variant": CLASSICAL, "task": task, **nobody}, None))
    return asked


def training_steps(run: str) -> int:
    """Return the number of training steps, or rounds of distillation, of a finished run.

    Raises:
        ConfigError: the run has not finished.
    """
    results = read_json(Path(run) / "summary.json", "results")
    if not results.get("finished"):
        raise ConfigError(f"{run}/summary.json: not of a finished training; resume it")
    return int(results["training_steps"])


def statistics(results: Mapping[str, Any], task: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return mean, interval and difference to the worker of each policy and metric in a task."""
    flown = {
        variant: {m: [f["finals"][m] for f in _flights(results, variant, task)] for m in METRICS}
        for variant in STYLES
    }
    rows = summary(flown, None)
    for variant, metrics in flown.items():
        for metric, sign in METRICS.items():
            pair = torch.tensor(metrics[metric]), torch.tensor(flown["worker"][metric])
            change = None if variant == "worker" else difference(*pair, "worker", sign, None)
            rows[variant][metric]["difference"] = change
    return rows


def _flights(results: Mapping[str, Any], variant: str, task: str) -> list[Run]:
    """Return the flights of a policy in a task, by training seed."""
    made = [one for one in results["runs"] if (one["variant"], one["task"]) == (variant, task)]
    return sorted(made, key=lambda one: one["seed"] or 0)


def table(results: Mapping[str, Any]) -> str:
    """Return all policies in all tasks as text, with paired differences to the worker."""
    lines = []
    for task in dict.fromkeys(one["task"] for one in results["runs"]):
        for number, (variant, row) in enumerate(statistics(results, task).items()):
            flights = _flights(results, variant, task)
            steps = "–"
            if variant in ("worker", "student"):
                steps = f"{mean(one['training_steps'] for one in flights):.0f}"
            cells = [cell for metric in METRICS for cell in change_cells(row[metric])]
            lines.append(("" if number else task, variant, *cells, steps))
    change = ("− worker [95 %]", "")
    measured = [part for label in LABELS.values() for part in (label, *change)]
    header = ("task", "policy", *measured, "training steps")
    flown = results["settings"]["variants"][CLASSICAL]
    seeds = len({one["seed"] for one in results["runs"] if one["variant"] == STAGES[0]})
    title = f"{flown['missions']} missions of seed {flown['seed']}, {seeds} training seeds"
    return table_text(title, header, lines)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw ROI entropy and F1 of all policies in all tasks, with 95 % intervals."""
    tasks = list(dict.fromkeys(one["task"] for one in results["runs"]))
    rows = [statistics(results, task) for task in tasks]
    figure = figures.make_figure(9, 3.6)
    for axes, (metric, label) in zip(figure.subplots(1, 2), LABELS.items(), strict=True):
        for k, (variant, (marker, colour)) in enumerate(STYLES.items()):
            values = [row[variant][metric] for row in rows]
            means = torch.tensor([value["mean"] for value in values])
            ends = torch.tensor([value["interval"] or (value["mean"],) * 2 for value in values]).T
            places = torch.arange(len(tasks)) + 0.15 * (k - 1.5)
            spread = torch.stack((means - ends[0], ends[1] - means))
            name = variant.replace("_", " ")
            axes.errorbar(places, means, spread, fmt=marker, color=colour, capsize=2, label=name)
        axes.set_xticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
        axes.set_ylabel(label)
        figures.tidy(axes)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figures.save(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.stages", "Compare workers, collective and students.")
    for stage in STAGES:
        parser.add_argument(
            f"--{stage}", required=True, metavar="RUN", help="run, with {seed} and {task} filled in"
        )
    parser.add_argument("--tasks", default=str(TASKS), metavar="FILE", help="tasks file")
    add_seeds(parser)
    parser.add_number("--missions", MISSIONS, "missions per flight", 1, 100_000)
    parser.add_number("--seed", SEED, "seed of the missions", 0, MOST_SEED)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
