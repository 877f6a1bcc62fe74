"""Measure the time until the paper is beaten: `python -m benchmarks.learning.time_to_paper`.

Each run trains the params file (default: params_fast.yaml) on `split` terrain, published starts and
its coarse map. Every `evaluation.interval` training steps the team flies the same validation
missions greedily on the paper's map of 493 × 493 cells. The time counts training without
validation, until the mean ROI entropy of a validation, and of all later ones, is at most the 0.284
bit that Westheider et al. 2023 (arXiv 2303.01150) report. They flew in another simulator. Runs in
the JSON are not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.text import number_text, table_text
from benchmarks.helpers.trainings import (
    Run,
    add_variants,
    by_variant,
    compare_variants,
    first_below,
)

PAPER = 0.284
MISSION = ("sensor.simulation.kinds=[split]", "experiment.missions.start=published")
MAP = ("sensor.pixel.number_x=57", "sensor.pixel.number_y=57")
"""Cells of a footprint at the lowest altitude."""
VARIANTS = {p: [*MISSION, f"compute.precision={p}"] for p in ("bfloat16", "float32")}


def measure(job: Job) -> dict[str, Any]:
    """Train the combinations of `--variants` and `--seeds` that the JSON lacks."""
    return compare_variants(job, VARIANTS, validated=MAP)


def table(results: Mapping[str, Any]) -> str:
    """Return seconds and transitions until the paper is beaten, with intervals over seeds."""
    lines = []
    for precision, runs in by_variant(results["runs"], VARIANTS).items():
        last = [one["rows"][-1] for one in runs]
        columns = [[row[name] for row in last] for name in ("roi_entropy", "f1", "seconds")]
        texts = (seeds_text(columns[0]), seeds_text(columns[1]), f"{mean(columns[2]):.0f}")
        lines.append((precision, str(len(runs)), *_reached(runs), *texts))
    steps = max(one["rows"][-1]["training_step"] for one in results["runs"])
    header = ("precision", "seeds", f"seconds to {PAPER} bit", "transitions",
              f"ROI entropy after {steps} steps [bit]", "F1", "seconds in all")  # fmt: skip
    return table_text("Time until the paper's ROI entropy is beaten", header, lines)


def _reached(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the seconds of each run, and the mean number of transitions."""
    found = [first_below(one, PAPER, "seconds", lasting=True) for one in runs]
    needed = [first_below(one, PAPER, "transitions", lasting=True) for one in runs]
    reached = [number for number in needed if number is not None]
    seconds = ", ".join("–" if number is None else f"{number:.0f}" for number in found)
    return seconds, number_text(mean(reached), ",.0f") if len(reached) == len(runs) else "–"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "learning.time_to_paper", "Measure the time until the paper is beaten.", "params_fast.yaml"
    )
    add_variants(parser, VARIANTS)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
