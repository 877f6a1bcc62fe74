"""What do predicted maps bring a team? `python -m benchmarks.learning.predicted`.

Trains the params file (default: params_fast.yaml) without and with the channels `predicted`,
`centred_predicted` and `global_predicted` of a trained predictor. Seed K of `--seeds` takes
the K-th of `--predictors`. Every run is written as soon as it is done, and a run that the JSON
already has is not made again.
"""

from __future__ import annotations

import argparse
import sys
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
    with_steps,
)
from benchmarks.helpers.kept_runs import (
    MOST_STEPS,
    add_runs,
    add_steps,
    begin,
    check_validates,
    missing_runs,
    read_seeds,
)
from benchmarks.helpers.run_statistics import seeds_text
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import PREDICTED_CHANNELS
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config

SUITE = "predicted"
WITHOUT = "without"
VARIANTS: dict[str, list[str]] = {
    WITHOUT: [],
    "predicted": [f"observation.{name}=true" for name in PREDICTED_CHANNELS],
}
METRICS = ("roi_entropy", "f1")


def run(
    config: Config,
    device: torch.device,
    variants: Sequence[str],
    predictors: Mapping[int, str],
    path: Path,
) -> dict[str, Any]:
    """Make the runs that `path` does not have, writing it after each one.

    Args:
        config: what the variants change.
        device: where everything lives.
        variants: names in `VARIANTS`.
        predictors: run folder or checkpoint by seed.
        path: the JSON.

    Returns:
        `settings`, `machine` and `runs`: `variant`, `seed`, `rows` (see `kept_runs.learn`).
    """
    settings = {"variants": VARIANTS, "configuration": config_to_dict(config)}
    found = begin(path, settings, device)
    for seed, predictor in predictors.items():
        chosen = with_overrides(config, f"networks.predictor={predictor}")
        for one, _ in missing_runs(found, chosen, device, variants, [seed]):
            found["runs"].append(one)
            harness.write_json(path, SUITE, found)
    return found


def table(found: Mapping[str, Any]) -> str:
    """Return the last validation as text, with differences seed by seed."""
    last = {(one["variant"], one["seed"]): one["rows"][-1] for one in found["runs"]}
    lines = []
    for variant in VARIANTS:
        rows = {seed: row for (name, seed), row in last.items() if name == variant}
        cells = []
        for metric in METRICS if rows else ():
            shared = [seed for seed in rows if (WITHOUT, seed) in last]
            changes = [rows[seed][metric] - last[WITHOUT, seed][metric] for seed in shared]
            cells.append(f"{mean(row[metric] for row in rows.values()):.3f}")
            cells.append("" if variant == WITHOUT or not changes else seeds_text(changes, "+"))
        if rows:
            seconds = harness.number_text(mean(row["seconds"] for row in rows.values()), ".0f")
            lines.append((variant, str(len(rows)), *cells, seconds))
    steps = max(row["training_step"] for row in last.values())
    header = ("channels", "seeds", "ROI entropy [bit]", "change", "F1", "change", "seconds")
    title = f"Greedy validation after {steps} training steps, 95 % intervals"
    return harness.table_text(title, header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "learning.predicted", "Train with and without predicted maps.", "params_fast.yaml"
    )
    parser.add_argument("--predictors", metavar="RUN,…", help="trained predictors, one a seed")
    add_runs(parser, VARIANTS)
    add_steps(parser)
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    variants = parse_names("--variants", options.variants, VARIANTS)
    seeds = read_seeds(options)
    check_between("--steps", options.steps, 1, MOST_STEPS)
    predictors = (options.predictors or "").split(",")
    if not all(predictors) or len(predictors) != len(seeds):
        raise ConfigError(
            f"--predictors: name {len(seeds)}, one for each of --seeds, such as runs/a,runs/b"
        )
    config, device, path = read_options(options, SUITE)
    check_validates(config)
    of_seeds = dict(zip(seeds, predictors, strict=True))
    found = run(with_steps(config, options.steps), device, variants, of_seeds, path)
    return f"{table(found)}\n{path}"


if __name__ == "__main__":
    sys.exit(main())
