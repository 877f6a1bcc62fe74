"""Does a team learn among obstacles? `python -m benchmarks.learning.no_fly [--seeds 3,4,5]`.

Trains the params file (default: params_fast.yaml) without obstacles, with three random ones in
every mission and the channels that show them, and with the same that no channel shows. Validation
missions have obstacles of their own; information gain and random flight fly the same ones. Every
run is written as soon as it is done, and a run that the JSON already has is not made again.
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
    with_steps,
)
from benchmarks.helpers.kept_runs import (
    MOST_STEPS,
    add_runs,
    begin,
    check_validates,
    missing_runs,
    read_seeds,
)
from benchmarks.helpers.run_statistics import seeds_text
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import validate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners.registry import make_planner

SUITE = "no_fly"
PLANNERS = ("information_gain", "random")
_OBSTACLES = "experiment.constraints.obstacles.number=3"
VARIANTS: dict[str, list[str]] = {
    "open": [],
    "obstacles": [_OBSTACLES, "observation.no_fly=true", "observation.centred_no_fly=true"],
    "obstacles_unseen": [_OBSTACLES],
}


def run(
    config: Config, device: torch.device, variants: Sequence[str], seeds: Sequence[int], path: Path
) -> dict[str, Any]:
    """Make the runs that `path` does not have, writing it after each one.

    Args:
        config: what the variants change.
        device: where everything lives.
        variants: names in `VARIANTS`.
        seeds: of `environment.seed`.
        path: the JSON.

    Returns:
        `settings`, `machine` and `runs`: `variant`, `seed`, `rows` (see `kept_runs.learn`) and
        `planners`, the validation entropy of each [bit].
    """
    settings = {"variants": VARIANTS, "configuration": config_to_dict(config)}
    found = begin(path, settings, device)
    for one, chosen in missing_runs(found, config, device, variants, seeds):
        one["planners"] = {name: planner_entropy(name, chosen, device) for name in PLANNERS}
        found["runs"].append(one)
        harness.write_json(path, SUITE, found)
    return found


def planner_entropy(name: str, config: Config, device: torch.device) -> float:
    """Return the mean entropy that a planner leaves in the validation missions [bit]."""
    env = MissionEnvironment(config, config.evaluation.missions, device, "validation")
    return float(validate(env, make_planner(name, env))["roi_entropy"].mean())


def entropy(one: Mapping[str, Any]) -> float:
    """Return the last validation entropy of a run [bit]."""
    return float(one["rows"][-1]["roi_entropy"])


def table(found: Mapping[str, Any]) -> str:
    """Return the last validation entropy of each variant as text, beside the planners'."""
    lines = []
    for variant in VARIANTS:
        runs = [one for one in found["runs"] if one["variant"] == variant]
        if runs:
            planners = (f"{mean(one['planners'][name] for one in runs):.3f}" for name in PLANNERS)
            lines.append(
                (variant, str(len(runs)), seeds_text([entropy(one) for one in runs]), *planners)
            )
    steps = max(one["rows"][-1]["training_step"] for one in found["runs"])
    title = f"ROI entropy of greedy validation after {steps} training steps, in bit"
    return harness.table_text(title, ("variant", "seeds", "learned [95 %]", *PLANNERS), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser("learning.no_fly", "Train with and without obstacles.", "params_fast.yaml")
    add_runs(parser, VARIANTS)
    parser.add_argument(
        "--steps", type=int, metavar="K", help="training steps (those of the params file)"
    )
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    variants = parse_names("--variants", options.variants, VARIANTS)
    seeds = read_seeds(options)
    config, device, path = read_options(options, SUITE)
    steps = config.learning.training_steps if options.steps is None else options.steps
    check_between("--steps", steps, 1, MOST_STEPS)
    check_validates(config)
    found = run(with_steps(config, steps), device, variants, seeds, path)
    return f"{table(found)}\n{path}"


if __name__ == "__main__":
    sys.exit(main())
