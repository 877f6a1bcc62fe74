"""Trainings that benchmarks compare: made once, and kept in their JSON.

A run that the JSON already has, with the same configuration, is not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser, parse_numbers, with_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.runs.files import strict
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

SEEDS = "3,4,5"
MOST_SEED = 2**20 - 1
STEPS = 120
MOST_STEPS = 10**6


def begin(path: Path, settings: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return what a JSON begins with: `settings`, the `runs` that it has already, `machine`.

    Raises:
        ConfigError: the file is another's, or its configuration is another one.
    """
    runs = _known_runs(path, settings)
    return {"settings": settings, "runs": runs, "machine": harness.announce_machine(device)}


def _known_runs(path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of an earlier JSON whose variants are the same, none without a JSON.

    Args:
        path: the JSON, with `settings` and `runs`, each of a `variant`.
        settings: `configuration`, and `variants` with their overrides.

    Raises:
        ConfigError: the file is another's, or its configuration is another one.
    """
    if not path.is_file():
        return []
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        settings = json.loads(json.dumps(strict(settings)))  # as it is written
        same = before["settings"]["configuration"] == settings["configuration"]
        runs: list[dict[str, Any]] = before["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--out {path}: it is not a file of this benchmark") from error
    if not same:
        raise ConfigError(f"--out {path}: its runs are of another configuration; name a new file")
    variants, same_variants = before["settings"]["variants"], settings["variants"]
    return [one for one in runs if variants[one["variant"]] == same_variants.get(one["variant"])]


def learn(config: Config, device: torch.device) -> list[dict[str, float]]:
    """Train as configured; return what each validation found, with the time spent on learning.

    Returns:
        Rows of `training_step`, `transitions`, `seconds` (without validation), `roi_entropy`
        [bit], `f1`, `return`, and `policy_entropy` [nat], `kl`, `explained_variance` of the
        training step before.
    """
    trainer, timer = Trainer(config, device), StageTimer(device)
    rows: list[dict[str, float]] = []
    seconds = 0.0
    while (before := trainer.algorithm.training_steps) < config.learning.training_steps:
        start = time.perf_counter()
        metrics, _ = trainer.training_step(timer)
        timer.wall()  # waits for the device
        seconds += time.perf_counter() - start
        found, _ = trainer.validate_when_due(before, timer)
        if not found:
            continue
        transitions = trainer.episodes * trainer.task.n_agents * trainer.task.episode_length
        rows.append(
            {
                "training_step": trainer.algorithm.training_steps,
                "transitions": transitions,
                "seconds": seconds,
                "roi_entropy": found["validation_entropy"],
                "f1": found["validation_f1"],
                "return": found["validation_return"],
                **{
                    name: float(metrics[name])
                    for name in ("policy_entropy", "kl", "explained_variance")
                },
            }
        )
    return rows


def missing_runs(
    found: Mapping[str, Any],
    config: Config,
    device: torch.device,
    variants: Sequence[str],
    seeds: Sequence[int],
) -> Iterator[tuple[dict[str, Any], Config]]:
    """Train the variants and seeds that are not among the runs found, one after the other.

    Args:
        found: `runs`, and `settings` with the overrides of `variants`.
        config: what the variants change.
        device: where everything lives.
        variants: names.
        seeds: of `environment.seed`.

    Yields:
        A run: `variant`, `seed` and `rows` (see `learn`); its configuration.
    """
    known = {(one["variant"], one["seed"]) for one in found["runs"]}
    for seed, variant in dict.fromkeys(product(seeds, variants)):
        if (variant, seed) not in known:
            overrides = found["settings"]["variants"][variant]
            chosen = with_overrides(config, f"environment.seed={seed}", *overrides)
            rows = learn(chosen, device)
            print(f"{variant}, seed {seed}: {rows[-1]['roi_entropy']:.3f}", file=sys.stderr)
            yield {"variant": variant, "seed": seed, "rows": rows}, chosen


def add_seeds(parser: Parser) -> None:
    """Add `--seeds`, which `read_seeds` reads."""
    parser.add_argument("--seeds", default=SEEDS, metavar="SEED,…", help=f"({SEEDS})")


def add_runs(parser: Parser, variants: Iterable[str]) -> None:
    """Add `--variants`, all by default, and `--seeds`."""
    parser.add_argument("--variants", default=",".join(variants), metavar="NAME,…", help="(all)")
    add_seeds(parser)


def add_steps(parser: Parser) -> None:
    """Add `--steps`."""
    parser.add_argument("--steps", type=int, default=STEPS, metavar="K", help=f"({STEPS})")


def read_seeds(options: argparse.Namespace) -> list[int]:
    """Return the numbers of `--seeds`.

    Raises:
        ConfigError: they are none.
    """
    return parse_numbers("--seeds", options.seeds, SEEDS, MOST_SEED, least=0)


def check_validates(config: Config) -> None:
    """Check that trainings validate.

    Raises:
        ConfigError: they do not.
    """
    if not config.evaluation.interval:
        raise ConfigError("evaluation.interval 0: nothing would be validated; give training steps")
