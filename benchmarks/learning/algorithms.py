"""What do the algorithms learn on the same missions? `python -m benchmarks.learning.algorithms`.

All algorithms have the same networks, transitions and schedule, those of the params file (default:
params_fast.yaml), and the same tuning: every algorithm has eight candidates, trained half as long
from each development seed on 4 UAVs over `split` terrain. The one with the lowest ROI entropy over
the last fifth of its validations is trained from each of `--seeds` in every world. The missions at
once are for 4 UAVs; 8 UAVs fly half as many, so that every world has the same transitions.

Every run is written as soon as it is done, and a run that the JSON has is not made again: a long
comparison can be made in parts, also with more seeds or worlds than before. The table has the last
validation: interquartile means over seeds, and how likely a run of an algorithm is better than one
of COMA, both with 95 % intervals (Agarwal et al. 2021). The figure beside the JSON has the curves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import (
    Parser,
    answer,
    check_between,
    parse_names,
    parse_numbers,
    read_options,
    with_overrides,
    with_steps,
)
from benchmarks.helpers.kept_runs import (
    MOST_SEED,
    MOST_STEPS,
    add_steps,
    begin,
    check_validates,
    learn,
)
from benchmarks.helpers.run_statistics import probability_of_improvement, runs_iqm
from benchmarks.helpers.short_training import last_fifth
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.config.parts import ALGORITHMS
from marl_framework.evaluation.report import with_interval

SUITE = "algorithms"
SEEDS = "3,4,5,6,7"
DEVELOPMENT_SEEDS = "101,102"
REFERENCE = "coma"
DEVELOPMENT = "development"
WORLDS = {f"{uavs}_uavs_{kind}": (uavs, kind) for uavs, kind in product((4, 8), ("split", "mixed"))}
"""Team size and terrain; candidates are chosen in the first."""
RATES = ("3e-4", "1e-3")
DISCOUNTS = (("0.8", "0.5"), ("0.95", "0.8"))
COLOURS = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK, "#56B4E9")

Run = dict[str, Any]


def candidates(config: Config, algorithm: str) -> dict[str, list[str]]:
    """Return overrides by name: 2 learning rates × 2 discounts × 2 choices of the algorithm's own.

    PPO has its passes over the data in as many batches as the params file says, or ten passes in
    one batch (Yu et al. 2022, section 5.3); the others have their advantage from critic or returns.
    """
    learning = config.learning
    own = [["learning.advantage=return"], ["learning.advantage=critic"]]
    if algorithm in ("ippo", "mappo"):
        whole = learning.batch_size * learning.batch_number
        one_batch = [f"learning.batch_size={whole}", "learning.batch_number=1"]
        own = [[], ["learning.data_passes=10", *one_batch]]
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


# Trainings --------------------------------------------------------------------------------


def run(
    config: Config, device: torch.device, asked: Mapping[str, Sequence[Any]], path: Path
) -> dict[str, Any]:
    """Make the runs that `path` does not have, writing it after each one.

    Args:
        config: what all share; `learning.training_steps` of the final runs.
        device: where everything lives.
        asked: `algorithms`, `worlds`, `seeds` and `development_seeds`.
        path: the JSON.

    Returns:
        `settings`, `machine`, `chosen`: the candidate of each algorithm, and `runs`: `variant`,
        `world`, `seed`, `rows` (see `kept_runs.learn`).
    """
    variants = {
        name: overrides
        for algorithm in ALGORITHMS
        for name, overrides in candidates(config, algorithm).items()
    }
    settings = {
        **{name: list(values) for name, values in asked.items()},
        "variants": variants,
        "configuration": config_to_dict(config),
    }
    found = {**begin(path, settings, device), "chosen": {}}
    half = with_steps(config, max(config.learning.training_steps // 2, 1))
    for algorithm, seed in product(asked["algorithms"], asked["development_seeds"]):
        for variant in candidates(config, algorithm):
            _add(found, half, device, (variant, DEVELOPMENT, seed), path)
    found["chosen"] = {algorithm: choose(found, algorithm) for algorithm in asked["algorithms"]}
    for seed, world, algorithm in product(asked["seeds"], asked["worlds"], asked["algorithms"]):
        _add(found, config, device, (found["chosen"][algorithm], world, seed), path)
    _write(found, path)  # also where every run was there
    return found


def _add(
    found: dict[str, Any],
    config: Config,
    device: torch.device,
    what: tuple[str, str, int],
    path: Path,
) -> None:
    """Make the run of a variant, a world and a seed, unless it is there."""
    variant, world, seed = what
    if any((one["variant"], one["world"], one["seed"]) == what for one in found["runs"]):
        return
    changes = [*_overrides(config, world), *found["settings"]["variants"][variant]]
    rows = learn(with_overrides(config, f"environment.seed={seed}", *changes), device)
    found["runs"].append({"variant": variant, "world": world, "seed": seed, "rows": rows})
    print(f"{variant}, {world}, seed {seed}: {rows[-1]['roi_entropy']:.3f}", file=sys.stderr)
    _write(found, path)


def _overrides(config: Config, world: str) -> list[str]:
    """Return what makes the params file fly in a world, with as many transitions as in others."""
    uavs, kind = next(iter(WORLDS.values())) if world == DEVELOPMENT else WORLDS[world]
    return [
        f"experiment.missions.n_agents={uavs}",
        f"sensor.simulation.kinds=[{kind}]",
        f"environment.num_envs={max(config.environment.num_envs * 4 // uavs, 1)}",
    ]


def _write(found: Mapping[str, Any], path: Path) -> None:
    harness.write_json(path, SUITE, found)
    if final_runs(found):
        draw(found, path.with_suffix(".png"))


def choose(found: Mapping[str, Any], algorithm: str) -> str:
    """Return the candidate of an algorithm with the lowest entropy over the development seeds."""
    scores = development_scores(found, algorithm)
    return min(scores, key=lambda variant: scores[variant])


def development_scores(found: Mapping[str, Any], algorithm: str) -> dict[str, float]:
    """Return the ROI entropy of each candidate: last fifth of its validations, all seeds."""
    seeds = found["settings"]["development_seeds"]
    scores: dict[str, list[float]] = {}
    for one in found["runs"]:
        name = one["variant"].rpartition(" ")[0]
        if (name, one["world"]) == (algorithm, DEVELOPMENT) and one["seed"] in seeds:
            late = last_fifth([row["roi_entropy"] for row in one["rows"]])
            scores.setdefault(one["variant"], []).append(late)
    return {variant: mean(values) for variant, values in scores.items()}


# Table and figure -------------------------------------------------------------------------


def final_runs(found: Mapping[str, Any]) -> dict[str, dict[str, list[Run]]]:
    """Return the final runs by world and algorithm, where all asked algorithms have all seeds."""
    asked, chosen = found["settings"], found["chosen"]
    worlds = {}
    for world in asked["worlds"]:
        runs = {
            algorithm: [
                one
                for one in found["runs"]
                if (one["variant"], one["world"]) == (variant, world)
                and one["seed"] in asked["seeds"]
            ]
            for algorithm, variant in chosen.items()
        }
        if runs and all(len(seeds) == len(asked["seeds"]) for seeds in runs.values()):
            worlds[world] = runs
    return worlds


def table(found: Mapping[str, Any]) -> str:
    """Return tuning and results as text."""
    return f"{_tuning_table(found)}\n{_final_table(found)}"


def _tuning_table(found: Mapping[str, Any]) -> str:
    settings, rows = found["settings"], []
    for algorithm, variant in found["chosen"].items():
        scores = development_scores(found, algorithm)
        changes = [text.partition(".")[2] for text in settings["variants"][variant][1:]]
        rows.append((algorithm, str(len(scores)), f"{scores[variant]:.3f}", ", ".join(changes)))
    header = ("algorithm", "candidates", "ROI entropy [bit]", "chosen")
    seeds = ", ".join(map(str, settings["development_seeds"]))
    return harness.table_text(f"Tuned on development seeds {seeds}, 4 UAVs, split", header, rows)


def _final_table(found: Mapping[str, Any]) -> str:
    worlds = final_runs(found)
    rows = [row for world, runs in worlds.items() for row in _rows(world, [runs])]
    if len(worlds) > 1:
        rows += _rows("all", list(worlds.values()))
    header = ("world", "algorithm", "ROI entropy [bit]", "F1", f"better than {REFERENCE}",
              "seconds")  # fmt: skip
    settings = found["settings"]
    steps = settings["configuration"]["learning"]["training_steps"]
    title = f"After {steps} training steps, {len(settings['seeds'])} seeds"
    return harness.table_text(f"{title}: interquartile means, 95 % intervals", header, rows)


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
        seconds = _last(tasks, algorithm, "seconds").mean().item()
        rows.append((world, algorithm, *means, better, harness.number_text(seconds, ".0f")))
    return rows


def _last(tasks: Sequence[Mapping[str, list[Run]]], algorithm: str, name: str) -> torch.Tensor:
    """Return what the last validation of each run says, [K, S]."""
    return torch.tensor([[one["rows"][-1][name] for one in task[algorithm]] for task in tasks])


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the validation entropy against transitions in each world: mean and range of seeds."""
    worlds = final_runs(found)
    figure = figures.make_figure(4.2 * len(worlds) + 1, 3.6)
    panels = figure.subplots(1, len(worlds), squeeze=False)[0]
    for axes, (world, runs) in zip(panels, worlds.items(), strict=True):
        for colour, (algorithm, seeds) in zip(COLOURS, runs.items(), strict=False):
            x = [row["transitions"] / 1000 for row in seeds[0]["rows"]]
            curves = [[row["roi_entropy"] for row in one["rows"]] for one in seeds]
            columns = list(zip(*curves, strict=True))
            axes.plot(x, [mean(column) for column in columns], color=colour, label=algorithm)
            low, high = ([end(column) for column in columns] for end in (min, max))
            axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
        axes.set(title=world.replace("_", " "), xlabel="transitions [thousands]")
        figures.tidy(axes)
    panels[0].set_ylabel("ROI entropy of greedy validation [bit]")
    panels[-1].legend(frameon=False, fontsize=8)
    figures.save(figure, path)


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "learning.algorithms", "Compare algorithms on the same missions.", "params_fast.yaml"
    )
    for name, known in (("algorithms", ALGORITHMS), ("worlds", WORLDS)):
        parser.add_argument(f"--{name}", default=",".join(known), metavar="NAME,…", help="(all)")
    parser.add_argument("--seeds", default=SEEDS, metavar="SEED,…", help=f"({SEEDS})")
    parser.add_argument(
        "--development-seeds",
        default=DEVELOPMENT_SEEDS,
        metavar="SEED,…",
        help=f"that candidates are chosen by ({DEVELOPMENT_SEEDS})",
    )
    add_steps(parser)
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    names = {
        "algorithms": parse_names("--algorithms", options.algorithms, ALGORITHMS),
        "worlds": parse_names("--worlds", options.worlds, WORLDS),
    }
    seeds = {
        "seeds": parse_numbers("--seeds", options.seeds, SEEDS, MOST_SEED, least=0),
        "development_seeds": parse_numbers(
            "--development-seeds", options.development_seeds, DEVELOPMENT_SEEDS, MOST_SEED, least=0
        ),
    }
    if both := set(seeds["seeds"]) & set(seeds["development_seeds"]):
        raise ConfigError(
            f"--development-seeds {options.development_seeds}: {min(both)} is one of --seeds too; "
            "what is chosen by a seed must not be measured by it"
        )
    check_between("--steps", options.steps, 1, MOST_STEPS)
    config, device, path = read_options(options, SUITE)
    check_validates(config)
    found = run(with_steps(config, options.steps), device, {**names, **seeds}, path)
    return f"{table(found)}\n{path}\n{path.with_suffix('.png')}"


if __name__ == "__main__":
    sys.exit(main())
