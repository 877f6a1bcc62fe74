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
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
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
    parse_numbers,
    read_options,
    with_overrides,
    with_steps,
)
from benchmarks.helpers.harness import number_text
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.runs.files import strict
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer

SUITE = "ablation"
STEPS = 120
MOST_STEPS = 10**6
SEEDS = "3,4,5"
LEARNED = 0.30  # validation entropy [bit] that counts as learned, for the time it takes
MOST_SEED = 2**20 - 1

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
        `settings`, `machine` and `runs`: `variant`, `seed`, `rows` (see `learn`).
    """
    settings = {"variants": VARIANTS, "configuration": config_to_dict(config)}
    found: dict[str, Any] = {"settings": settings, "runs": known_runs(path, settings)}
    found["machine"] = harness.announce_machine(device)
    for one, _ in missing_runs(found, config, device, variants, seeds):
        found["runs"].append(one)
        harness.write_json(path, SUITE, found)
        draw(found, path.with_suffix(".png"))
    return found


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


def known_runs(path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
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
    parser.add_argument("--variants", default=",".join(VARIANTS), metavar="NAME,…", help="(all)")
    parser.add_argument("--seeds", default=SEEDS, metavar="SEED,…", help=f"({SEEDS})")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="K", help=f"({STEPS})")
    options = parser.parse_args(arguments)
    return answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    variants = parse_names("--variants", options.variants, VARIANTS)
    seeds = parse_numbers("--seeds", options.seeds, SEEDS, MOST_SEED, least=0)
    check_between("--steps", options.steps, 1, MOST_STEPS)
    config, device, path = read_options(options, SUITE)
    if not config.evaluation.interval:
        raise ConfigError("evaluation.interval 0: nothing would be validated; give training steps")
    found = run(with_steps(config, options.steps), device, variants, seeds, path)
    return f"{table(found)}\n{path}\n{path.with_suffix('.png')}"


if __name__ == "__main__":
    sys.exit(main())
