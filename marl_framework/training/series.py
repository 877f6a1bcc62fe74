"""Several trainings with one command: seeds, varied values and a summary over the seeds."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from marl_framework.command_line import INTERRUPTED, loaded
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.loading import (
    AUTOMATIC,
    config_from_dict,
    config_to_dict,
    differences,
    load_config,
    values_by_key,
    without_defaults,
)
from marl_framework.config.model import Config
from marl_framework.runs.files import read_json, write_json
from marl_framework.runs.names import check_run_name, name_in_use
from marl_framework.training.options import Start, require, require_number
from marl_framework.training.processes import run_commands
from marl_framework.training.slurm import read_options, submit

_SHARED = ("compute.device", "experiment.policy", "experiment.missions.mission_mode")
"""Keys that must be the same for all runs of a command."""


@dataclass(frozen=True)
class Launch:
    """Options for starting several runs."""

    words: Sequence[str]
    """Command-line options shared by all runs."""
    jobs: int
    """Number of runs to train at the same time."""
    slurm: Mapping[str, str | int] | None
    """Options of sbatch; None to train on this machine."""
    fresh: bool
    """Whether to refuse names of existing runs."""


def read_launch(options: argparse.Namespace, start: Start, option: str) -> Launch:
    """Read the options for starting several runs; `option` is the option that requests them.

    Raises ConfigError if an option is invalid or requires several runs.
    """
    require(options, {"jobs": option, "launcher": option})
    require_number("jobs", options.jobs, 1)
    slurm = read_options(options.slurm or "") if options.launcher == "slurm" else None
    if options.slurm and slurm is None:
        raise ConfigError("--slurm requires --launcher slurm")
    if slurm is not None and start.archive_earlier:
        text = "--archive-earlier: not supported with --launcher slurm; archive the runs first: "
        raise ConfigError(f"{text}python -m marl_framework.history archive NAME")
    words = [f"--config={options.config}"] if options.config else []
    words += [f"--set={override}" for override in options.overrides]
    words += [f"--init-from={start.init_from}"] if start.init_from else []
    words += [f"--allow-changed={key}" for key in start.allow_changed or ()]
    words += [f"--profile={start.profile}"] if start.profile else []
    words += ["--archive-earlier"] if start.archive_earlier else []
    words += ["--resume"] if start.resume or slurm is not None else []
    fresh = not (start.resume or start.archive_earlier)
    return Launch(words, options.jobs or 1, slurm, fresh)


def _read_seeds(text: str) -> list[int]:
    """Parse the value of `--seeds`, such as 3,4,5."""
    parts = [part.strip() for part in text.split(",")]
    numbers = all(part.isdecimal() and len(part) < 20 for part in parts)  # int reads 4300 digits
    if not numbers or len(set(map(int, parts))) < len(parts):
        raise ConfigError(f"--seeds {text}: invalid; give different whole numbers, such as 3,4,5")
    return [int(part) for part in parts]


def _read_variants(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the overrides of each combination of `--vary KEY=V,…`, by suffix of the run name."""
    columns: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = (part.strip() for part in text.partition("="))
        choices = [value.strip() for value in values.split(",")]
        repeated = len(set(choices)) < len(choices)
        if not key or not all(choices) or repeated or set(values) & set("[]{}"):
            raise ConfigError(
                f"--vary {text}: invalid; give a key and different values, no lists, such as "
                "learning.gamma=0.8,0.9"
            )
        if key == "environment.seed":
            raise ConfigError("--vary environment.seed: set the seeds with --seeds")
        if key in _SHARED or key.startswith("logging."):
            raise ConfigError(f"--vary {key}: must be the same for all runs; use --set")
        if key in columns:
            raise ConfigError(f"--vary {key}: given twice; give all values at once: {key}=V1,V2")
        columns[key] = choices
    variants: dict[str, list[str]] = {}
    for chosen in product(*columns.values()):
        name = "".join(f"-{value}" for value in chosen)
        if name in variants:
            raise ConfigError(f"--vary: two combinations have the name NAME{name}; change a value")
        variants[name] = [f"{key}={value}" for key, value in zip(columns, chosen, strict=True)]
    return variants


def read_series(
    config: Config, run_name: str, seeds: str, vary: Sequence[str]
) -> dict[str, dict[str, Config]]:
    """Build the series of `--seeds` and `--vary`.

    Returns configurations by series name and run name; both names begin with `run_name`. Raises
    ConfigError if a seed, value or name is invalid, or two runs are the same training.
    """
    tree, numbers = without_defaults(config), _read_seeds(seeds)
    series: dict[str, dict[str, Config]] = {}
    known: dict[str, str] = {}
    source = "--vary" if vary else "--seeds"
    for variant, overrides in _read_variants(vary).items():
        runs = series[f"{run_name}{variant}"] = {}
        for seed in numbers:
            name = f"{run_name}{variant}-{seed}"
            run = config_from_dict(tree, source, [*overrides, f"environment.seed={seed}"])
            with found_at(source):
                check_run_name(name)
            if (other := known.setdefault(run.model_dump_json(), name)) != name:
                raise ConfigError(
                    f"--vary: {other} and {name} are the same training; remove one value"
                )
            runs[name] = run
    return series


def train_runs(launch: Launch, config: Config, runs: Mapping[str, Config]) -> dict[str, int]:
    """Train all runs, or submit them to Slurm.

    `launch.words` describe `config`; `runs` has configurations by run name. Returns the exit codes
    by run name, see `run_commands`; empty after a submission. Raises ConfigError if a run exists,
    before the first run starts.
    """
    commands = {}
    for name, run in runs.items():
        if launch.fresh and (path := Path(run.logging.directory) / name).exists():
            raise name_in_use(path)
        words = [f"--run-name={name}", *launch.words]
        changed = {key: value for key, (_, value) in differences(config, run).items()}
        if "experiment.algorithm" in changed:  # whose defaults would replace equal values
            changed |= {key: value for key, value in values_by_key(run).items() if key in AUTOMATIC}
        for key, value in changed.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
            words.append(f"--set={key}={text.splitlines()[0]}")
        commands[name] = [sys.executable, "-m", "marl_framework.main", *words]
    loaded()
    if launch.slurm is None:
        return run_commands(commands, launch.jobs)
    folder = Path(config.logging.directory) / "slurm"
    for name, job in submit(commands, folder, launch.slurm).items():
        print(f"submitted: {name} as job {job.job_id}", flush=True)
    print("when all jobs have ended, use the same command with --resume and without --launcher")
    return {}


def train_series(launch: Launch, config: Config, series: Mapping[str, Mapping[str, Config]]) -> int:
    """Train all runs of `read_series` and summarise each series; return the exit code."""
    codes = train_runs(launch, config, {n: c for runs in series.values() for n, c in runs.items()})
    for title, runs in series.items():
        done = {name: run for name, run in runs.items() if codes.get(name) == 0}
        if done and INTERRUPTED not in codes.values():
            write_summary(Path(config.logging.directory) / f"{title}-seeds.json", done, runs)
    return max(codes.values(), default=0)


def write_summary(file: Path, done: Mapping[str, Config], runs: Mapping[str, Config]) -> None:
    """Write and print the summary over seeds, including matching runs of earlier commands."""
    from marl_framework.evaluation.report import with_interval  # loads PyTorch

    summary = sum_up({**_earlier_runs(file, runs), **done}, file.parent)
    if number := len(summary["runs"]):
        write_json(file, summary)
        plural = "s" if number != 1 else ""
        print(f"{number} seed{plural}: mean [95 % interval of the mean over seeds]")
        for name, metric in summary["metrics"].items():
            print(f"  {name:<24} {with_interval(metric['mean'], metric['interval'], digits=4)}")
        print(f"summary over the seeds: {file}", flush=True)


def _earlier_runs(file: Path, runs: Mapping[str, Config]) -> dict[str, Config]:
    """Return the runs in the summary that differ only in their seed."""

    def all_but_seed(config: Config) -> dict[str, Any]:
        tree = config_to_dict(config)
        del tree["environment"]["seed"], tree["compute"], tree["logging"]
        return tree

    earlier, (ours, *_) = {}, runs.values()
    for name in read_json(file, "runs"):
        with suppress(ConfigError):  # the run is missing or has another version
            other = load_config(file.parent / name / "config.yaml")
            if name not in runs and all_but_seed(other) == all_but_seed(ours):
                earlier[name] = other
    return earlier


def sum_up(runs: Mapping[str, Config], folder: Path) -> dict[str, Any]:
    """Compute means and intervals over the finished runs in a folder.

    Returns `runs`, seeds by run name, and `metrics`: last metrics, metrics of the best validation
    and times, each with `values`, `mean`, `std` and the 95 % Student's t `interval` of the mean
    over seeds (`std` and `interval` are null for a single run).
    """
    from marl_framework.evaluation.statistics import student_interval  # loads PyTorch

    seeds: dict[str, int] = {}
    columns: defaultdict[str, list[float]] = defaultdict(list)
    for name, config in runs.items():
        summary = folder / name / "summary.json"
        results, timing = read_json(summary, "results"), read_json(summary, "timing")
        if not (results.get("finished") and "best" in results):
            continue
        seeds[name] = config.environment.seed
        row = {f"{kind} {k}": v for kind in ("last", "best") for k, v in results[kind].items()}
        row |= {key: timing[key] for key in ("seconds", "transitions_per_second")}
        for key, value in row.items():
            if isinstance(value, int | float):  # finite
                columns[key].append(value)
    metrics = {
        key: {
            "values": values,
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else None,
            "interval": student_interval(values),
        }
        for key, values in columns.items()
    }
    return {"runs": seeds, "metrics": metrics}
