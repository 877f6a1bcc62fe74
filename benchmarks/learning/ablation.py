"""Compare variants of a schedule, each trained from several seeds.

    python -m benchmarks.learning.ablation [--variants kept,…] [--seeds 3,4,5] [--steps 120]

A run trains the params file (default: params_fast.yaml) with the overrides of one variant and flies
the same validation missions greedily every `evaluation.interval` training steps. The learning
rates decay over `--steps`. Each run is written when it ends, and a run that the JSON already has is
not repeated, so long comparisons can be made in parts. The figure next to the JSON has the curves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.helpers import figures
from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.text import number_text, table_text
from benchmarks.helpers.trainings import (
    LEARNED,
    add_variants,
    by_variant,
    compare_variants,
    first_below,
)

_DISCOUNT = ["learning.gamma=0.99", "learning.lambda=0.8"]
_CENTRED = [
    f"observation.centred_{name}=false"
    for name in ("entropy", "probability", "footprint", "uncertainty")
]
_UNCERTAINTY = [f"observation.{name}uncertainty=false" for name in ("", "centred_", "global_")]
VARIANTS: dict[str, list[str]] = {
    "kept": [],
    "critic_advantage": ["learning.advantage=critic"],
    "discount_0.99": _DISCOUNT,
    "discount_0.95": ["learning.gamma=0.95", "learning.lambda=0.8"],
    "critic_discount_0.99": ["learning.advantage=critic", *_DISCOUNT],
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
    "convolutions": ["compute.convolutions=convolution"],
    "float32": ["compute.precision=float32"],
    "f1_reward": ["experiment.reward.f1_scale=10"],
    "outside_reward": ["experiment.reward.outside_weight=0.5"],
    "published": [
        "learning.advantage=critic",
        *_DISCOUNT,
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
"""Overrides of the params file; `published` has the paper's learning with the same networks."""


def table(results: Mapping[str, Any]) -> str:
    """Return the last validation of each variant as text: means and deviations over seeds.

    The difference has a 95 % interval over seeds that both variants have.
    """
    lines: list[tuple[str, ...]] = []
    first: dict[int, float] = {}
    for variant, runs in by_variant(results["runs"], VARIANTS).items():
        last = [run["rows"][-1] for run in runs]
        entropy = {run["seed"]: run["rows"][-1]["roi_entropy"] for run in runs}
        first = first or entropy
        more = [entropy[seed] - first[seed] for seed in entropy if seed in first]
        learned = [first_below(run, LEARNED, "transitions") for run in runs]
        reached = [number for number in learned if number is not None]
        lines.append(
            (
                variant,
                str(len(runs)),
                *(
                    _spread([row[name] for row in last])
                    for name in ("roi_entropy", "f1", "policy_entropy")
                ),
                f"{mean(reached):,.0f}" if len(reached) == len(runs) else "–",
                number_text(mean(row["seconds"] for row in last), ".0f"),
                seeds_text(more, "+") if lines and more else "–",
            )
        )
    steps = max(one["rows"][-1]["training_step"] for one in results["runs"])
    header = ("variant", "seeds", "ROI entropy [bit]", "F1", "policy entropy [nat]",
              f"transitions to {LEARNED}", "seconds", "more entropy than the first")  # fmt: skip
    return table_text(f"Greedy validation after {steps} training steps", header, lines)


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{deviation}"


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the validation entropy of each variant against transitions."""
    figure = figures.make_figure(9, 5)
    axes = figure.subplots()
    styles = ("-", "--", ":")
    for number, (variant, runs) in enumerate(by_variant(results["runs"], VARIANTS).items()):
        style = styles[number // 10 % len(styles)]
        figures.draw_curves(axes, runs, f"C{number % 10}", variant, style)
    axes.set_ylabel("ROI entropy of greedy validation [bit]")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figures.save(figure, path)


def measure(job: Job) -> dict[str, Any]:
    """Train what the JSON lacks."""
    return compare_variants(job, VARIANTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.ablation", "Compare variants of a schedule.", "params_fast.yaml")
    add_variants(parser, VARIANTS)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
