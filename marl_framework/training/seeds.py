"""Trains a configuration with several seeds, and sums the runs up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from marl_framework.command_line import INTERRUPTED
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict, config_to_dict, load_config
from marl_framework.config.model import Config
from marl_framework.runs.files import read_json, write_json
from marl_framework.runs.names import name_in_use
from marl_framework.training.jobs import worst

_OF_COMMANDS = ("compute.device", "experiment.policy", "experiment.missions.mission_mode")
"""Keys that say what a command does, and where."""


def read_seeds(text: str) -> list[int]:
    """Return the seeds of `--seeds 3,4,5`.

    Raises:
        ConfigError: they are no whole numbers, or one comes twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise ConfigError(f"--seeds {text}: give different whole numbers, such as 3,4,5")
    return [int(part) for part in parts]


def read_variants(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return what `--vary KEY=V,…` asks for: overrides by the part of a run's name that tells them.

    Raises:
        ConfigError: one names no key, or no value or the same one twice.
    """
    columns: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        key, _, values = (part.strip() for part in text.partition("="))
        each = [value.strip() for value in values.split(",")]
        if not key or not all(each) or len(set(each)) < len(each) or set(values) & set("[]{}"):
            raise ConfigError(
                f"--vary {text}: give a key and different values, no lists, such as "
                "learning.gamma=0.8,0.9"
            )
        if key == "environment.seed":
            raise ConfigError("--vary environment.seed: --seeds says the seeds")
        if key in _OF_COMMANDS or key.startswith("logging."):
            raise ConfigError(f"--vary {key}: is one for all runs of a command; use --set")
        if key in columns:
            raise ConfigError(f"--vary {key}: give all its values at once, such as {key}=V1,V2")
        columns[key] = [(value, f"{key}={value}") for value in each]
    found: dict[str, list[str]] = {}
    for chosen in product(*columns.values()):
        name = "".join(f"-{value}" for value, _ in chosen)
        if name in found:
            raise ConfigError(f"--vary: two combinations would be named NAME{name}")
        found[name] = [override for _, override in chosen]
    return found


def with_seeds(
    config: Config, name: str, seeds: Sequence[int], overrides: Sequence[str] = ()
) -> dict[str, Config]:
    """Return the configuration with each seed, by the name of its run: `NAME-SEED`.

    Args:
        config: of all.
        name: of the series.
        seeds: of the runs.
        overrides: what else differs from the configuration, as `SECTION.KEY=VALUE`.

    Raises:
        ConfigError: a seed is out of range, or an override is wrong.
    """
    tree = config_to_dict(config)
    source = "--vary" if overrides else "--seeds"
    return {
        f"{name}-{seed}": config_from_dict(tree, source, [*overrides, f"environment.seed={seed}"])
        for seed in seeds
    }


def check_different(series: Mapping[str, Mapping[str, Config]]) -> None:
    """Check that no run would be trained twice.

    Raises:
        ConfigError: two have the same configuration.
    """
    known: dict[str, str] = {}
    for runs in series.values():
        for name, config in runs.items():
            other = known.setdefault(config.model_dump_json(), name)
            if other != name:
                raise ConfigError(f"--vary: {other} and {name} are the same training")


def check_free(runs: Mapping[str, Config]) -> None:
    """Check that no run of these names exists, before hours go into the first of them.

    Raises:
        ConfigError: one does.
    """
    for name, config in runs.items():
        path = Path(config.logging.directory) / name
        if path.exists():
            raise name_in_use(path)


def train_each(
    series: Mapping[str, Mapping[str, Config]],
    train: Callable[..., dict[str, int]],
    folder: Path,
) -> int:
    """Train the runs of several seeds, and write the summary of each series, see `sum_up`.

    Args:
        series: by name, the configurations of its runs by theirs.
        train: trains all runs, such as `jobs.train_runs`: of them and of the line that is printed
            before each, returns their exit codes.
        folder: of the runs; a summary is `NAME-seeds.json` there.

    Returns:
        See `worst`.
    """
    every = {name: config for runs in series.values() for name, config in runs.items()}
    codes = train(every, title=lambda name, config: f"seed {config.environment.seed}: {name}")
    for title, runs in series.items():
        done = {name: config for name, config in runs.items() if codes[name] == 0}
        if done and INTERRUPTED not in codes.values():
            summary = folder / f"{title}-seeds.json"
            found = sum_up({**_of_earlier_commands(summary, runs), **done}, folder)
            write_json(summary, found)
            print(f"{table(found)}\nsummary over the seeds: {summary}", flush=True)
    return worst(codes)


def _of_earlier_commands(summary: Path, runs: Mapping[str, Config]) -> dict[str, Config]:
    """Return the runs of the summary as it stands that differ from these in their seed alone."""

    def all_but_seed(config: Config) -> dict[str, Any]:
        tree = config_to_dict(config)
        del tree["environment"]["seed"], tree["compute"], tree["logging"]
        return tree

    found, (ours, *_) = {}, runs.values()
    for name in read_json(summary, "runs"):
        with suppress(ConfigError):  # it is gone, or of another version
            other = load_config(summary.parent / name / "config.yaml")
            if name not in runs and all_but_seed(other) == all_but_seed(ours):
                found[name] = other
    return found


def sum_up(runs: Mapping[str, Config], folder: Path) -> dict[str, Any]:
    """Return means and intervals over the finished runs in a folder.

    Returns:
        `runs`: name to seed; `metrics`: last ones, those of the best validation, and the times,
        each with `values`, `mean`, `std` and the 95 % interval of Student's t for the mean over
        seeds (`std` and `interval` are null for a single run).
    """
    rows, seeds = [], {}
    for name, config in runs.items():
        summary = folder / name / "summary.json"
        results, timing = read_json(summary, "results"), read_json(summary, "timing")
        if results.get("finished") and "best" in results:  # trainings in rounds have none
            seeds[name] = config.environment.seed
            rows.append(
                {
                    **{f"last {key}": value for key, value in results["last"].items()},
                    **{f"best {key}": value for key, value in results["best"].items()},
                    **{key: timing[key] for key in ("seconds", "transitions_per_second")},
                }
            )
    columns: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if isinstance(value, int | float):  # finite
                columns.setdefault(key, []).append(value)
    return {"runs": seeds, "metrics": {key: _spread(values) for key, values in columns.items()}}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    from marl_framework.evaluation.statistics import student_interval  # loads PyTorch

    return {
        "values": list(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "interval": student_interval(values),
    }


def table(found: Mapping[str, Any]) -> str:
    """Return a summary of `sum_up` as text: a line for each metric."""
    from marl_framework.evaluation.report import with_interval  # loads PyTorch

    number = len(found["runs"])
    lines = [
        f"{number} seed{'s' if number != 1 else ''}: mean [95 % interval of the mean over seeds]"
    ]
    for name, known in found["metrics"].items():
        lines.append(f"  {name:<24} {with_interval(known['mean'], known['interval'], digits=4)}")
    return "\n".join(lines)
