"""Trainings in benchmarks: validation curves cached in the JSON, and speed over a few steps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.harness import utilisation, utilisation_monitor
from benchmarks.helpers.networks_alone import NetworksAlone
from marl_framework.algorithms.graphs import WARM_UP, uses_graphs
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.runs.files import strict
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer
from marl_framework.training.validation import Validation

SEEDS = "3,4,5"
MOST_SEED = MAX_SEED - 1
STEPS = 120
LEARNED = 0.30
"""ROI entropy of a validation [bit] that counts as learned."""

Run = dict[str, Any]


# Options ----------------------------------------------------------------------------------


def add_seeds(parser: Parser, seeds: str = SEEDS, option: str = "--seeds") -> None:
    """Add `--seeds`, a list of training seeds."""
    parser.add_numbers(option, seeds, "training seeds", MOST_SEED, least=0)


def add_variants(parser: Parser, variants: Iterable[str], steps: int | None = STEPS) -> None:
    """Add the options of a comparison: `--variants` (all by default), `--seeds` and `--steps`."""
    parser.add_names("--variants", list(variants))
    add_seeds(parser)
    add_steps(parser, steps)


def add_steps(parser: Parser, steps: int | None = STEPS) -> None:
    """Add `--steps`, the length of a training; the default None means as configured."""
    parser.add_key("--steps", "learning.training_steps", steps, metavar="K")


# Validation curves, cached ----------------------------------------------------------------


class Cache:
    """Runs in a benchmark's JSON, which is written after each new run.

    Existing runs in the JSON are kept if their configuration and variant are unchanged.

    Args:
        job: job of the benchmark; all runs share its configuration.
        variants: overrides, or other content, by variant.
        settings: additional entries of `settings`.

    Attributes:
        runs: list of all runs, each with the key `variant`.
        results: content of the JSON.

    Raises:
        ConfigError: the file belongs to another benchmark or configuration.
    """

    def __init__(self, job: Job, variants: Mapping[str, Any], **settings: Any) -> None:
        self._job = job
        settings |= {"variants": variants, "configuration": config_to_dict(job.config)}
        self.runs = _known_runs(job, settings)
        self.results: dict[str, Any] = {"settings": settings, "runs": self.runs}

    def has(self, **key: Any) -> bool:
        """Return whether a run has all values of `key`."""
        return any(key.items() <= run.items() for run in self.runs)

    def add(self, **run: Any) -> None:
        """Add a run and write the JSON."""
        self.runs.append(run)
        self._job.save(self.results)
        names = [str(run[key]) for key in ("variant", "world", "task") if key in run]
        entropy = f": {run['rows'][-1]['roi_entropy']:.3f}" if "rows" in run else ""
        print(f"{', '.join(names)}, seed {run['seed']}{entropy}", file=sys.stderr, flush=True)


def _known_runs(job: Job, settings: Mapping[str, Any]) -> list[Run]:
    """Return the runs in an existing JSON whose variants are unchanged."""
    path = job.path
    if not path.is_file():
        return []
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        settings = json.loads(json.dumps(strict(settings)))  # as it is written
        defaults = json.loads(json.dumps(strict(config_to_dict(Config()))))
        known = _with_defaults(before["settings"]["configuration"], defaults)
        same = known == settings["configuration"]
        suite, variants = before["suite"], before["settings"]["variants"]
        runs: list[Run] = before["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--out {path}: not a file of this benchmark") from error
    if suite != job.suite:  # its runs would be dropped as those of changed variants
        raise ConfigError(f"--out {path}: has runs of {suite}; use a new file")
    if not same:
        raise ConfigError(f"--out {path}: has runs with another configuration; use a new file")
    same_variants = settings["variants"]
    return [run for run in runs if variants[run["variant"]] == same_variants.get(run["variant"])]


def _with_defaults(tree: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the defaults of newer keys, and without removed keys.

    Sections without defaults, such as `distillation.tasks`, keep all their keys.
    """
    nested = {
        key: _with_defaults(value, defaults[key])
        for key, value in tree.items()
        if isinstance(value, dict) and isinstance(defaults.get(key), dict)
    }
    present = {key: tree[key] for key in tree if key in defaults or not defaults}
    return {**defaults, **present, **nested}


def compare_variants(
    job: Job,
    variants: Mapping[str, Sequence[str]],
    by_seed: Callable[[int], Sequence[str]] = lambda _: (),
    more: Callable[[Config], Run] = lambda _: {},
    validated: Sequence[str] = (),
) -> dict[str, Any]:
    """Train those combinations of `--variants` and `--seeds` that the JSON lacks.

    Args:
        job: job with the options of `add_variants`.
        variants: overrides by variant.
        by_seed: function that returns additional overrides for a seed.
        more: function that returns additional entries of a run, given the run's configuration.
        validated: overrides of the validation missions.

    Returns:
        `settings` and `runs`; a run has `variant`, `seed`, `rows` (see `learn`) and the entries of
        `more`.
    """
    cache, options = Cache(job, variants), job.options
    for seed, variant in product(options.seeds, options.variants):
        if not cache.has(variant=variant, seed=seed):
            overrides = (*by_seed(seed), f"environment.seed={seed}", *variants[variant])
            chosen = with_overrides(job.config, *overrides)
            flown = [with_overrides(chosen, *validated)] if validated else []
            rows = learn(chosen, job.device, *flown)
            cache.add(variant=variant, seed=seed, rows=rows, **more(chosen))
    return cache.results


def learn(
    config: Config, device: torch.device, validated: Config | None = None
) -> list[dict[str, float]]:
    """Train as configured; return one row per validation, in the missions of `validated` if given.

    Returns:
        Rows of `training_step`, `transitions`, `seconds` and `cpu_seconds` (of all cores), both
        without validation, `roi_entropy` [bit], `f1`, `return`, and `policy_entropy` [nat], `kl`,
        `explained_variance` of the latest training step.

    Raises:
        ConfigError: no validation is configured.
    """
    if not config.evaluation.interval:
        raise ConfigError("evaluation.interval must be above 0; try 1")
    trainer, timer = Trainer(config, device), StageTimer(device)
    if validated is not None:
        env = MissionEnvironment(validated, 1, device)
        builder = ObservationBuilder(validated, env.lattice, env.camera)
        planner = LearnedPlanner(trainer.algorithm.act, builder, env.lattice)
        trainer.validation = Validation(validated, device, trainer.ranks, [planner])
    rows: list[dict[str, float]] = []
    seconds = cpu_seconds = 0.0
    while (before := trainer.algorithm.training_steps) < config.learning.training_steps:
        start, cpu_start = time.perf_counter(), time.process_time()
        metrics, _ = trainer.make_steps(timer)
        timer.wall()  # waits for the device
        seconds += time.perf_counter() - start
        cpu_seconds += time.process_time() - cpu_start
        if trainer.validation.is_due(before, trainer.steps):
            means, _ = trainer.validation.run(trainer.steps)
            transitions = trainer.episodes * trainer.task.n_agents * trainer.task.episode_length
            rows.append(
                {
                    "training_step": trainer.algorithm.training_steps,
                    "transitions": transitions,
                    "seconds": seconds,
                    "cpu_seconds": cpu_seconds,
                    "roi_entropy": means["validation_entropy"],
                    "f1": means["validation_f1"],
                    "return": means["validation_return"],
                    **{
                        name: float(metrics[name])
                        for name in ("policy_entropy", "kl", "explained_variance")
                    },
                }
            )
    return rows


def by_variant(runs: Sequence[Run], variants: Iterable[str]) -> dict[str, list[Run]]:
    """Return the runs of each variant that has any, in the order of `variants`."""
    grouped = {name: [run for run in runs if run["variant"] == name] for name in variants}
    return {name: of_variant for name, of_variant in grouped.items() if of_variant}


def first_below(run: Run, level: float, column: str, lasting: bool = False) -> float | None:
    """Return a column of a run's first validation with an ROI entropy of at most `level` [bit].

    Args:
        run: result of `learn`, in `rows`.
        level: ROI entropy [bit].
        column: `transitions`, `seconds` or `cpu_seconds`.
        lasting: whether all later validations have to be at most `level`, too.

    Returns:
        The value; None without such a validation.
    """
    found: float | None = None
    for row in run["rows"]:
        if row["roi_entropy"] > level:
            found = None if lasting else found
        elif found is None:
            found = row[column]
    return found


# Speed ------------------------------------------------------------------------------------


def warmed_up(config: Config, device: torch.device) -> tuple[Trainer, int]:
    """Return a trainer whose CUDA graphs, if used, are recorded, and its training steps so far."""
    trainer, timer = Trainer(config, device), StageTimer(device)
    steps = WARM_UP + 1 if uses_graphs(config, device) else 1
    for _ in range(steps):
        trainer.make_steps(timer)
    timer.wall()  # waits for the device
    return trainer, steps


def time_steps(
    trainer: Trainer, timer: StageTimer, steps: int
) -> Iterator[tuple[float, dict[str, float]]]:
    """Make training steps; yield the durations of each step and of its stages [s]."""
    for _ in range(steps):
        timer.wall()
        timer.reset()
        trainer.make_steps(timer)
        yield timer.wall(), timer.seconds()


def measure_training(
    config: Config, device: torch.device, note: Callable[[str], None] = lambda _: None
) -> Run:
    """Train for `learning.training_steps`, then fly the validation missions greedily.

    Before that, another trainer warms up. Metrics stay on the device until the end.

    Args:
        config: configuration of missions, networks and schedule.
        device: device of all tensors.
        note: function that shows the progress.

    Returns:
        A row: `seconds`, `transitions`, `flops`, `cpu_seconds`, columns of `utilisation`, `metrics`
        by name and round of updates, and `validation`, the mean of each metric.
    """
    single = with_overrides(config, "learning.update_interval=1")
    warmed_up(single, device)
    flops = NetworksAlone(single, device).flops()  # per training step
    trainer, timer = Trainer(config, device), StageTimer(device)
    records: list[dict[str, Tensor | float]] = []
    steps = config.learning.training_steps
    cpu = time.process_time()
    with utilisation_monitor(device) as monitor:
        while trainer.algorithm.training_steps < steps:
            records.append(trainer.make_steps(timer)[0])
            note(f"training step {trainer.algorithm.training_steps} of {steps}")
        seconds = timer.wall()
    flown = trainer.validation.fly()
    return {
        "seconds": seconds,
        "transitions": steps * config.schedule.transitions_per_step,
        "flops": flops * steps,
        "cpu_seconds": time.process_time() - cpu,
        **utilisation(monitor),
        "metrics": {name: [float(r[name]) for r in records] for name in records[0]},
        "validation": {name: float(values.mean()) for name, values in flown.items()},
    }


def last_fifth(values: Sequence[float]) -> float:
    """Return the mean of the last fifth of the values, but at least the last value."""
    return mean(values[-max(len(values) // 5, 1) :])
