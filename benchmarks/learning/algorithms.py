"""Compare the algorithms on the same missions: `python -m benchmarks.learning.algorithms`.

All algorithms have the same networks, transitions and schedule, those of the params file (default:
params_fast.yaml), and the same tuning: eight candidates per algorithm are trained half as long
from each development seed with 4 UAVs over `split` terrain. The candidate with the lowest ROI
entropy over the last fifth of its validations is trained from each of `--seeds` in every world.
The params file sets the missions at once for 4 UAVs; 8 UAVs fly half as many missions, so that
every world has the same number of transitions.

Each run is written when it ends, and a run that the JSON already has is not repeated, so a long
comparison can be made in parts, also with more seeds or worlds. The table has the last validation:
interquartile means over seeds, and the probability that a run of an algorithm is better than one
of COMA, both with 95 % intervals (Agarwal et al. 2021). The figure next to the JSON has the curves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from benchmarks.helpers import figures
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.run_statistics import probability_of_improvement, runs_iqm
from benchmarks.helpers.text import number_text, table_text
from benchmarks.helpers.trainings import (
    LEARNED,
    Cache,
    Run,
    add_seeds,
    add_steps,
    first_below,
    last_fifth,
    learn,
)
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.parts import ALGORITHMS
from marl_framework.evaluation.report import with_interval

SEEDS = "3,4,5,6,7"
DEVELOPMENT_SEEDS = "101,102"
REFERENCE = "coma"
DEVELOPMENT = "development"
WORLDS = {f"{uavs}_uavs_{kind}": (uavs, kind) for uavs, kind in product((4, 8), ("split", "mixed"))}
"""Team size and terrain; candidates are compared in the first world."""
RATES = ("3e-4", "1e-3")
DISCOUNTS = (("0.8", "0.5"), ("0.95", "0.8"))
TEMPERATURES = ("0.01", "0.05")
_MORE = ("#56B4E9", "#000000", "#999999", "#8B4513")
COLOURS = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK, *_MORE)


def candidates(config: Config, algorithm: str) -> dict[str, list[str]]:
    """Return overrides by name: 2 learning rates × 2 discounts × 2 settings of the algorithm.

    PPO passes over the data in the batches of the params file, or ten times in one batch (Yu et
    al. 2022, section 5.3); SAC draws transitions as often as the params file says, or twice as
    often; QMIX has two temperatures; the others take their advantage from the critic or from
    returns.
    """
    learning = config.learning
    own = [["learning.advantage=return"], ["learning.advantage=critic"]]
    if algorithm in ("ippo", "mappo"):
        whole = learning.batch_size * learning.batch_number
        one_batch = [f"learning.batch_size={whole}", "learning.batch_number=1"]
        own = [[], ["learning.data_passes=10", *one_batch]]
    if algorithm in ("sac", "isac"):
        own = [[], [f"learning.data_passes={2 * learning.data_passes}"]]
    if algorithm == "qmix":
        own = [[f"learning.temperature={value}"] for value in TEMPERATURES]
    choices = product(RATES, DISCOUNTS, own)
    return {
        f"{algorithm} {number}": [
            f"experiment.algorithm={algorithm}",
            f"learning.actor.learning_rate={rate}",
            f"learning.gamma={gamma}",
            f"learning.lambda={trace}",
            *more,
        ]
        for number, (rate, (gamma, trace), more) in enumerate(choices, 1)
    }


def measure(job: Job) -> dict[str, Any]:
    """Tune the algorithms and train the chosen candidates, except runs that the JSON has.

    Returns:
        `settings`, `chosen`: the candidate of each algorithm, and `runs`: `variant`, `world`,
        `seed`, `rows` (see `trainings.learn`).

    Raises:
        ConfigError: a development seed is also one of `--seeds`.
    """
    names = ("algorithms", "worlds", "seeds", "development_seeds")
    asked = {name: list(getattr(job.options, name)) for name in names}
    if both := set(asked["seeds"]) & set(asked["development_seeds"]):
        raise ConfigError(f"--development-seeds: {min(both)} must not be one of --seeds")
    of_algorithm = {algorithm: candidates(job.config, algorithm) for algorithm in ALGORITHMS}
    variants = {name: o for results in of_algorithm.values() for name, o in results.items()}
    cache = Cache(job, variants, **asked)
    cache.results["chosen"] = {}

    def add(steps: int, variant: str, world: str, seed: int) -> None:
        if not cache.has(variant=variant, world=world, seed=seed):
            changes = [*_overrides(job.config, world), *variants[variant]]
            length = f"learning.training_steps={steps}"
            chosen = with_overrides(job.config, f"environment.seed={seed}", length, *changes)
            rows = learn(chosen, job.device)
            cache.add(variant=variant, world=world, seed=seed, rows=rows)

    steps = job.config.learning.training_steps
    for algorithm, seed in product(asked["algorithms"], asked["development_seeds"]):
        for variant in of_algorithm[algorithm]:
            add(max(steps // 2, 1), variant, DEVELOPMENT, seed)
    chosen = {algorithm: choose(cache.results, algorithm) for algorithm in asked["algorithms"]}
    cache.results["chosen"] = chosen
    for seed, world, algorithm in product(asked["seeds"], asked["worlds"], asked["algorithms"]):
        add(steps, chosen[algorithm], world, seed)
    return cache.results


def _overrides(config: Config, world: str) -> list[str]:
    """Return the overrides of a world, with as many transitions as in the others."""
    uavs, kind = next(iter(WORLDS.values())) if world == DEVELOPMENT else WORLDS[world]
    return [
        f"experiment.missions.n_agents={uavs}",
        f"sensor.simulation.kinds=[{kind}]",
        f"environment.num_envs={max(config.environment.num_envs * 4 // uavs, 1)}",
    ]


def choose(results: Mapping[str, Any], algorithm: str) -> str:
    """Return the candidate of an algorithm with the lowest entropy over the development seeds."""
    scores = development_scores(results, algorithm)
    return min(scores, key=lambda variant: scores[variant])


def development_scores(results: Mapping[str, Any], algorithm: str) -> dict[str, float]:
    """Return the ROI entropy of each candidate: last fifth of its validations, all seeds."""
    seeds = results["settings"]["development_seeds"]
    scores: dict[str, list[float]] = {}
    for one in results["runs"]:
        name = one["variant"].rpartition(" ")[0]
        if (name, one["world"]) == (algorithm, DEVELOPMENT) and one["seed"] in seeds:
            late = last_fifth([row["roi_entropy"] for row in one["rows"]])
            scores.setdefault(one["variant"], []).append(late)
    return {variant: mean(values) for variant, values in scores.items()}


def final_runs(results: Mapping[str, Any]) -> dict[str, dict[str, list[Run]]]:
    """Return the final runs by world and algorithm, of worlds in which no run is missing."""
    asked, chosen = results["settings"], results["chosen"]
    worlds = {}
    for world in asked["worlds"]:
        runs = {
            algorithm: [
                one
                for one in results["runs"]
                if (one["variant"], one["world"]) == (variant, world)
                and one["seed"] in asked["seeds"]
            ]
            for algorithm, variant in chosen.items()
        }
        if runs and all(len(seeds) == len(asked["seeds"]) for seeds in runs.values()):
            worlds[world] = runs
    return worlds


def table(results: Mapping[str, Any]) -> str:
    """Return tuning and results as text."""
    return f"{_tuning_table(results)}\n{_final_table(results)}"


def _tuning_table(results: Mapping[str, Any]) -> str:
    settings, rows = results["settings"], []
    for algorithm, variant in results["chosen"].items():
        scores = development_scores(results, algorithm)
        changes = [text.partition(".")[2] for text in settings["variants"][variant][1:]]
        rows.append((algorithm, str(len(scores)), f"{scores[variant]:.3f}", ", ".join(changes)))
    header = ("algorithm", "candidates", "ROI entropy [bit]", "chosen")
    seeds = ", ".join(map(str, settings["development_seeds"]))
    return table_text(f"Tuned on development seeds {seeds}, 4 UAVs, split", header, rows)


def _final_table(results: Mapping[str, Any]) -> str:
    worlds = final_runs(results)
    rows = [row for world, runs in worlds.items() for row in _rows(world, [runs])]
    if len(worlds) > 1:
        rows += _rows("all", list(worlds.values()))
    header = ("world", "algorithm", "ROI entropy [bit]", "F1", f"better than {REFERENCE}",
              f"transitions to {LEARNED:.2f}", "seconds", "at equal seconds")  # fmt: skip
    settings = results["settings"]
    steps = settings["configuration"]["learning"]["training_steps"]
    title = f"After {steps} training steps, {len(settings['seeds'])} seeds"
    return table_text(f"{title}: interquartile means, 95 % intervals", header, rows)


def _rows(world: str, tasks: Sequence[Mapping[str, list[Run]]]) -> list[tuple[str, ...]]:
    """Return a row for each algorithm, over one world or several."""
    rows: list[tuple[str, ...]] = []
    for algorithm in tasks[0]:
        better = "–"
        if algorithm != REFERENCE and REFERENCE in tasks[0]:
            ours, theirs = (_last(tasks, name, "roi_entropy") for name in (algorithm, REFERENCE))
            better = with_interval(*probability_of_improvement(-ours, -theirs), digits=2)
        means = (
            with_interval(*runs_iqm(_last(tasks, algorithm, name)), digits=3)
            for name in ("roi_entropy", "f1")
        )
        learned = [
            first_below(one, LEARNED, "transitions") for task in tasks for one in task[algorithm]
        ]
        middle = median(inf if number is None else number for number in learned)
        middle = middle if len(tasks) == 1 else inf  # worlds have other levels
        seconds = mean(_seconds(one["rows"][-1]) for task in tasks for one in task[algorithm])
        equal = torch.tensor([_after_equal_time(task, algorithm) for task in tasks])
        rows.append(
            (world, algorithm, *means, better,
             f"{middle:,.0f}" if middle < inf else "–",
             number_text(seconds, ".0f"),
             with_interval(*runs_iqm(equal), digits=3))
        )  # fmt: skip
    return rows


def _after_equal_time(task: Mapping[str, list[Run]], algorithm: str) -> list[float]:
    """Return the ROI entropy of each run when the fastest algorithm ends, on average.

    It is that of the last validation before.
    """
    limit = min(mean(_seconds(one["rows"][-1]) for one in runs) for runs in task.values())
    seen = ([row for row in one["rows"] if _seconds(row) <= limit] for one in task[algorithm])
    return [rows[-1]["roi_entropy"] if rows else inf for rows in seen]


def _seconds(row: Mapping[str, float]) -> float:
    """Return the CPU time of a training, or in older files its duration."""
    return row["cpu_seconds"] if "cpu_seconds" in row else row["seconds"]


def _last(tasks: Sequence[Mapping[str, list[Run]]], algorithm: str, name: str) -> torch.Tensor:
    """Return a metric of the last validation of each run, [K, S]."""
    return torch.tensor([[one["rows"][-1][name] for one in task[algorithm]] for task in tasks])


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the validation entropy against transitions in each world."""
    worlds = final_runs(results)
    figure = figures.make_figure(4.2 * len(worlds) + 1, 3.6)
    panels = figure.subplots(1, len(worlds), squeeze=False)[0]
    for axes, (world, runs) in zip(panels, worlds.items(), strict=True):
        for (algorithm, seeds), colour in zip(runs.items(), cycle(COLOURS), strict=False):
            figures.draw_curves(axes, seeds, colour, algorithm)
        axes.set_title(world.replace("_", " "))
    panels[0].set_ylabel("ROI entropy of greedy validation [bit]")
    panels[-1].legend(frameon=False, fontsize=8)
    figures.save(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "learning.algorithms", "Compare algorithms on the same missions.", "params_fast.yaml"
    )
    parser.add_names("--algorithms", ALGORITHMS)
    parser.add_names("--worlds", WORLDS)
    add_seeds(parser, SEEDS)
    add_seeds(parser, DEVELOPMENT_SEEDS, "--development-seeds")
    add_steps(parser)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
