"""Compare trainings with and without obstacles: `python -m benchmarks.learning.no_fly`.

Trains the params file (default: params_fast.yaml) without obstacles, with three random obstacles
per mission and the channels that show them, and with the same obstacles but without the channels.
Validation missions have other obstacles; information gain and random flight fly the same missions.
Each run is written when it ends, and a run that the JSON already has is not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.text import table_text
from benchmarks.helpers.trainings import add_variants, by_variant, compare_variants
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import validate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner

PLANNERS = ("information_gain", "random")
_OBSTACLES = "experiment.constraints.obstacles.number=3"
VARIANTS: dict[str, list[str]] = {
    "open": [],
    "obstacles": [_OBSTACLES, "observation.no_fly=true", "observation.centred_no_fly=true"],
    "obstacles_unseen": [_OBSTACLES],
}


def measure(job: Job) -> dict[str, Any]:
    """Train what the JSON lacks, and fly the planners on the same validation missions."""

    def planners(config: Config) -> dict[str, Any]:
        return {"planners": {p: planner_entropy(p, config, job.device) for p in PLANNERS}}

    return compare_variants(job, VARIANTS, more=planners)


def planner_entropy(name: str, config: Config, device: torch.device) -> float:
    """Return a planner's mean ROI entropy in the validation missions [bit]."""
    env = MissionEnvironment(config, config.evaluation.missions, device, "validation")
    return float(validate(env, make_planner(name, env))["roi_entropy"].mean())


def table(results: Mapping[str, Any]) -> str:
    """Return the last validation entropy of each variant and of the planners as text."""
    lines = []
    for variant, runs in by_variant(results["runs"], VARIANTS).items():
        planners = (f"{mean(one['planners'][name] for one in runs):.3f}" for name in PLANNERS)
        learned = seeds_text([one["rows"][-1]["roi_entropy"] for one in runs])
        lines.append((variant, str(len(runs)), learned, *planners))
    steps = max(one["rows"][-1]["training_step"] for one in results["runs"])
    title = f"ROI entropy of greedy validation after {steps} training steps, in bit"
    return table_text(title, ("variant", "seeds", "learned [95 %]", *PLANNERS), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.no_fly", "Train with and without obstacles.", "params_fast.yaml")
    add_variants(parser, VARIANTS, steps=None)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
