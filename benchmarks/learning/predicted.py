"""Compare trainings with and without predicted maps: `python -m benchmarks.learning.predicted`.

Trains the params file (default: params_fast.yaml) without and with the channels `predicted`,
`centred_predicted` and `global_predicted` of a trained predictor. The K-th of `--seeds` takes the
K-th of `--predictors`. Each run is written when it ends, and a run that the JSON already has is
not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import add_variants, compare_variants
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import PREDICTED_CHANNELS
from marl_framework.observations.prediction import load_predictor

WITHOUT = "without"
VARIANTS: dict[str, list[str]] = {
    WITHOUT: [],
    "predicted": [f"observation.{name}=true" for name in PREDICTED_CHANNELS],
}


def measure(job: Job) -> dict[str, Any]:
    """Train what the JSON lacks."""
    seeds = job.options.seeds
    predictors = (job.options.predictors or "").split(",")
    if not all(predictors) or len(predictors) != len(seeds):
        raise ConfigError(
            f"--predictors: name {len(seeds)}, one for each of --seeds, such as runs/a,runs/b"
        )
    for name in predictors:
        load_predictor(name, "--predictors")  # before any training
    of_seeds = dict(zip(seeds, predictors, strict=True))
    return compare_variants(job, VARIANTS, lambda seed: [f"networks.predictor={of_seeds[seed]}"])


def table(results: Mapping[str, Any]) -> str:
    """Return the last validation as text, with differences seed by seed."""
    last = {(run["variant"], run["seed"]): run["rows"][-1] for run in results["runs"]}
    lines = []
    for variant in VARIANTS:
        if not (ours := {seed: row for (name, seed), row in last.items() if name == variant}):
            continue
        cells = []
        for metric in ("roi_entropy", "f1"):
            pairs = [(row, last.get((WITHOUT, seed))) for seed, row in ours.items()]
            changes = [row[metric] - other[metric] for row, other in pairs if other]
            cells.append(f"{mean(row[metric] for row in ours.values()):.3f}")
            cells.append(seeds_text(changes, "+") if changes and variant != WITHOUT else "")
        seconds = f"{mean(row['seconds'] for row in ours.values()):.0f}"
        lines.append((variant, str(len(ours)), *cells, seconds))
    steps = max(row["training_step"] for row in last.values())
    title = f"Greedy validation after {steps} training steps, 95 % intervals"
    header = ("channels", "seeds", "ROI entropy [bit]", "change", "F1", "change", "seconds")
    return table_text(title, header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "learning.predicted", "Train with and without predicted maps.", "params_fast.yaml"
    )
    parser.add_argument("--predictors", metavar="RUN,…", help="trained predictors, one per seed")
    add_variants(parser, VARIANTS)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
