"""How far do workers, the collective and its students get? `python -m benchmarks.learning.stages`.

Flies the missions of every task of a tasks file with the task's worker (trained on it alone), with
the collective (one team for all tasks), with the task's student (which went on from the collective)
and with information gain. In the names of the runs, `{seed}` and `{task}` stand for training seed
and task. docs/distillation.md has the commands that train them.

Every flight is written as soon as it is done, and one that the JSON has is not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import (
    Parser,
    answer,
    check_between,
    read_options,
)
from benchmarks.helpers.kept_runs import add_seeds, begin, read_seeds
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict, with_changes
from marl_framework.config.model import Config
from marl_framework.distillation.tasks import read_tasks, with_mission
from marl_framework.evaluation import comparison
from marl_framework.evaluation.flight import evaluate
from marl_framework.evaluation.suite import digest, finals
from marl_framework.evaluation.suite_statistics import (
    LABELS,
    METRICS,
    change_cells,
    difference,
    summary,
)
from marl_framework.evaluation.worlds import MISSIONS, SEED
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.planners.team import Checkpoint, find_checkpoint
from marl_framework.runs.files import read_json

SUITE = "stages"
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
_MOST_MISSIONS = 100_000

Runs = Mapping[str, Mapping[int, Mapping[str, str]]]
"""Run folder by stage, training seed and task."""


def run(
    config: Config,
    device: torch.device,
    tasks: Mapping[str, Any],
    runs: Runs,
    missions: int,
    seed: int,
    path: Path,
) -> dict[str, Any]:
    """Make the flights that `path` does not have, writing it after each one.

    Args:
        config: of the missions, which the tasks change.
        device: where everything lives.
        tasks: what each changes, by name.
        runs: who flies.
        missions: of a flight.
        seed: of the missions.
        path: the JSON.

    Returns:
        `settings`, `machine` and `runs`: `variant` (a stage or `information_gain`), `task`,
        `seed` (of the training, None for information gain), `checkpoint` (its SHA-256),
        `training_steps` (rounds of the collective), and `finals`, a value for each mission by
        metric.

    Raises:
        ConfigError: a run is missing, or does not go together with a task.
    """
    flown = {"tasks": tasks, "missions": missions, "seed": seed}
    settings = {"variants": dict.fromkeys(STYLES, flown), "configuration": config_to_dict(config)}
    asked = _asked(tasks, runs)
    found = begin(path, settings, device)
    found["runs"] = made = [
        one for one in found["runs"] if any(flight.items() <= one.items() for flight, _ in asked)
    ]
    for flight, team in asked:
        if any(flight.items() <= one.items() for one in made):
            continue
        task, name = flight["task"], flight["variant"]
        mission = with_mission(config, with_changes(config, tasks[task], task), task)
        teams = {} if team is None else {name: team}
        ready = comparison.prepare(mission, device, [name], missions, seed, teams=teams)
        record = evaluate(
            ready.environments[name], ready.planners[name], missions, seed, keep_maps=0
        )
        made.append({**flight, "finals": finals(record)})
        harness.write_json(path, SUITE, found)
        print(f"{task}: {name}, seed {flight['seed']}", file=sys.stderr, flush=True)
    return found


def _asked(tasks: Mapping[str, Any], runs: Runs) -> list[tuple[dict[str, Any], Checkpoint | None]]:
    """Return all flights: what they are known by, and the team that makes them."""
    asked: list[tuple[dict[str, Any], Checkpoint | None]] = []
    for task in tasks:
        for stage, seeds in runs.items():
            for seed, names in seeds.items():
                team = find_checkpoint(names[task])
                flight = {
                    "variant": stage,
                    "task": task,
                    "seed": seed,
                    "checkpoint": digest(team),
                    "training_steps": training_steps(names[task]),
                }
                asked.append((flight, team))
        nobody = dict.fromkeys(("seed", "checkpoint", "training_steps"))
        asked.append(({"variant": CLASSICAL, "task": task, **nobody}, None))
    return asked


def training_steps(run: str) -> int:
    """Return how many training steps, or rounds of distillation, a run has made.

    Raises:
        ConfigError: it has not ended.
    """
    results = read_json(Path(run) / "summary.json", "results")
    if not results.get("finished"):
        raise ConfigError(f"{run}: it has no summary.json of a finished training")
    return int(results["training_steps"])


# Table and figure -------------------------------------------------------------------------


def statistics(found: Mapping[str, Any], task: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return mean, interval and difference to the worker of each policy and metric in a task."""
    flown = {
        variant: {m: [one["finals"][m] for one in _flights(found, variant, task)] for m in METRICS}
        for variant in STYLES
    }
    rows = summary(flown, None)
    for variant, metrics in flown.items():
        for metric, sign in METRICS.items():
            paired = torch.tensor(metrics[metric]) - torch.tensor(flown["worker"][metric])
            change = None if variant == "worker" else difference(paired, "worker", sign, None)
            rows[variant][metric]["difference"] = change
    return rows


def _flights(found: Mapping[str, Any], variant: str, task: str) -> list[dict[str, Any]]:
    """Return the flights of a policy in a task, by training seed."""
    made = [one for one in found["runs"] if (one["variant"], one["task"]) == (variant, task)]
    return sorted(made, key=lambda one: one["seed"] or 0)


def table(found: Mapping[str, Any]) -> str:
    """Return every policy in every task as text, with paired differences to the worker."""
    lines = []
    for task in dict.fromkeys(one["task"] for one in found["runs"]):
        for number, (variant, row) in enumerate(statistics(found, task).items()):
            flights = _flights(found, variant, task)
            steps = "–"
            if variant in ("worker", "student"):
                steps = f"{mean(one['training_steps'] for one in flights):.0f}"
            cells = [cell for metric in METRICS for cell in change_cells(row[metric])]
            lines.append(("" if number else task, variant, *cells, steps))
    change = ("− worker [95 %]", "")
    measured = [part for label in LABELS.values() for part in (label, *change)]
    header = ("task", "policy", *measured, "training steps")
    flown = found["settings"]["variants"][CLASSICAL]
    seeds = len({one["seed"] for one in found["runs"] if one["variant"] == STAGES[0]})
    title = f"{flown['missions']} missions of seed {flown['seed']}, {seeds} training seeds"
    return harness.table_text(title, header, lines)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw ROI entropy and F1 of every policy in every task, with 95 % intervals."""
    tasks = list(dict.fromkeys(one["task"] for one in found["runs"]))
    rows = [statistics(found, task) for task in tasks]
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


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser("learning.stages", "Compare workers, collective and students.")
    for stage in STAGES:
        parser.add_argument(
            f"--{stage}", required=True, metavar="RUN", help="with {seed} and {task} in its name"
        )
    parser.add_argument("--tasks", default=str(TASKS), metavar="FILE", help="(those of docs/)")
    add_seeds(parser)
    parser.add_argument("--missions", type=int, default=MISSIONS, metavar="M", help=f"({MISSIONS})")
    parser.add_argument("--seed", type=int, default=SEED, metavar="S", help=f"of them ({SEED})")
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    seeds = read_seeds(options)
    check_between("--missions", options.missions, 1, _MOST_MISSIONS)
    check_between("--seed", options.seed, 0, MAX_SEED - 1)
    tasks = read_tasks(options.tasks)
    config, device, path = read_options(options, SUITE)
    runs = {
        stage: {
            seed: {
                task: getattr(options, stage).replace("{seed}", str(seed)).replace("{task}", task)
                for task in tasks
            }
            for seed in seeds
        }
        for stage in STAGES
    }
    found = run(config, device, tasks, runs, options.missions, options.seed, path)
    draw(found, path.with_suffix(".png"))
    return f"{table(found)}\n{path}\n{path.with_suffix('.png')}"


if __name__ == "__main__":
    sys.exit(main())
