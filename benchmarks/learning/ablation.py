"""Which choices make a team learn: variants of a schedule, each trained from several seeds.

    python -m benchmarks.learning.ablation [--variants kept,…] [--seeds 3,4,5] [--steps 120]

A run trains the params file (default: params_fast.yaml) with one variant's overrides and flies the
same validation missions greedily every `evaluation.interval` training steps. The learning rates
decay over `--steps`. Every run is written as soon as it is done, and a run that the JSON already
has, with the same configuration, is not made again: long comparisons can be made in parts. The
figure beside the JSON has the curves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import (
    Parser,
    answer,
    check_between,
    parse_names,
    read_options,
    with_steps,
)
from benchmarks.helpers.harness import number_text
from benchmarks.helpers.kept_runs import (
    MOST_STEPS,
    add_runs,
    add_steps,
    begin,
    check_validates,
    missing_runs,
    read_seeds,
)
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config

SUITE = "ablation"
LEARNED = 0.30  # validation entropy [bit] that counts as learned, for the time it takes

_CENTRED = [
    f"observation.centred_{name}=false"
    for name in ("entropy", "probability", "footprint", "uncertainty")
]
_UNCERTAINTY = [f"observation.{name}uncertainty=false" for name in ("", "centred_", "global_")]
VARIANTS: dict[str, list[str]] = {
    "kept": [],
    "critic_advantage": ["learning.advantage=critic"],
    "discount_0.99": ["learning.gamma=0.99", "learning.lambda=0.8"],
    "discount_0.95": ["learning.gamma=0.95", "learning.lambda=0.8"],
    "critic_discount_0.99": [
        "learning.advantage=critic",
        "learning.gamma=0.99",
        "learning.lambda=0.8",
    ],
    "not_clipped": ["learning.clip_ratio=0"],
    "not_normalized": ["learning.normalize_advantages=false"],
    "no_entropy_bonus": ["learning.entropy_coefficient=0"],
    "no_centred_maps": _CENTRED,
    "no_uncertainty_maps": _UNCERTAINTY,
    "no_symmetries": ["learning.symmetries=false"],
    "one_pass": ["learning.data_passes=1"],
    "constant_rate": ["learning.lr_decay=1"],
    "actor_rate_1e-3": ["learning.actor.learning_rate=1e-3"],
    "actor_rate_1e-4": ["learning.actor.learning_rate=1e-4"],
    "wide": ["networks.actor.conv_channels=96", "networks.critic.conv_channels=96"],
    "f1_reward": ["experiment.reward.f1_scale=10"],
    "outside_reward": ["experiment.reward.outside_weight=0.5"],
    "published": [
        "learning.advantage=critic",
        "learning.gamma=0.99",
        "learning.lambda=0.8",
        "learning.clip_ratio=0",
        "learning.normalize_advantages=false",
        "learning.entropy_coefficient=0",
        "learning.lr_decay=1",
        "learning.copy_rate=10",
        "learning.data_passes=5",
        "learning.actor.learning_rate=1e-5",
        "learning.critic.learning_rate=1e-4",
        "learning.symmetries=false",
        "learning.eps_max=0.5",
        *_CENTRED,
        *_UNCERTAINTY,
    ],
}
"""Overrides of the params file; `published` has the paper's learning on the same small networks."""


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
        `settings`, `machine` and `runs`: `variant`, `seed`, `rows` (see `kept_runs.learn`).
    """
    settings = {"variants": VARIANTS, "configuration": config_to_dict(config)}
    found = begin(path, settings, device)
    for one, _ in missing_runs(found, config, device, variants, seeds):
        found["runs"].append(one)
        harness.write_json(path, SUITE, found)
        draw(found, path.with_suffix(".png"))
    return found


# Table and figure -------------------------------------------------------------------------


def by_variant(found: Mapping[str, Any]) -> dict[str, list[list[dict[str, float]]]]:
    """Return the rows of all seeds of each variant, in the order of `VARIANTS`."""
    runs = found["runs"]
    grouped = {v: [one["rows"] for one in runs if one["variant"] == v] for v in VARIANTS}
    return {variant: seeds for variant, seeds in grouped.items() if seeds}


def table(found: Mapping[str, Any]) -> str:
    """Return the last validation of each variant as text: means and deviations over seeds."""
    lines = []
    for variant, seeds in by_variant(found).items():
        learned = [
            next((row["transitions"] for row in rows if row["roi_entropy"] <= LEARNED), None)
            for rows in seeds
        ]
        reached = [number for number in learned if number is not None]
        lines.append(
            (
                variant,
                str(len(seeds)),
                *(_spread([rows[-1][name] for rows in seeds]) for name in ("roi_entropy", "f1")),
                _spread([rows[-1]["policy_entropy"] for rows in seeds]),
                f"{mean(reached):,.0f}" if len(reached) == len(seeds) else "–",
                number_text(mean(rows[-1]["seconds"] for rows in seeds), ".0f"),
            )
        )
    steps = max(one["rows"][-1]["training_step"] for one in found["runs"])
    header = ("variant", "seeds", "ROI entropy [bit]", "F1", "policy entropy [nat]",
              f"transitions to {LEARNED}", "seconds")  # fmt: skip
    return harness.table_text(f"Greedy validation after {steps} training steps", header, lines)


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{deviation}"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the validation entropy of each variant against transitions: mean and range of seeds."""
    figure = figures.make_figure(9, 5)
    axes = figure.subplots()
    styles = ("-", "--", ":")
    for number, (variant, seeds) in enumerate(by_variant(found).items()):
        x = [row["transitions"] / 1000 for row in seeds[0]]
        columns = list(zip(*([row["roi_entropy"] for row in rows] for rows in seeds), strict=True))
        colour, style = f"C{number % 10}", styles[number // 10 % 3]
        axes.plot(x, [mean(c) for c in columns], style, color=colour, label=variant)
        axes.fill_between(
            x, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15, lw=0
        )
    axes.set(xlabel="transitions [thousands]", ylabel="ROI entropy of greedy validation [bit]")
    figures.tidy(axes)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figures.save(figure, path)


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "learning.ablation", "Train variants of a schedule from several seeds.", "params_fast.yaml"
    )
    add_runs(parser, VARIANTS)
    add_steps(parser)
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    variants = parse_names("--variants", options.variants, VARIANTS)
    seeds = read_seeds(options)
    check_between("--steps", options.steps, 1, MOST_STEPS)
    config, device, path = read_options(options, SUITE)
    check_validates(config)
    found = run(with_steps(config, options.steps), device, variants, seeds, path)
    return f"{table(found)}\n{path}\n{path.with_suffix('.png')}"


if __name__ == "__main__":
    sys.exit(main())
