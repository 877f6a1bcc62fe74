"""How often may the same transitions be learned from? `python -m benchmarks.learning.sample_reuse`.

Trainings that differ in `learning.data_passes` alone, with and without `learning.kl_limit`, over
the same number of transitions. Columns: return of the validation missions with its interval over
training seeds, KL between the policy that flew and the one after a training step, explained
variance of the critic, both over the last fifth of the training, the share of all updates of the
actor that the limit held back, and transitions a second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.helpers import figures, harness
from benchmarks.helpers.command_line import (
    Parser,
    parse_numbers,
    with_overrides,
    with_trainings,
)
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.short_training import (
    last_fifth,
    learn_from_seeds,
    mean_of,
    number_of_seeds,
    return_errors,
    validation_columns,
)
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config

PASSES = "1,2,3,5,10,20,40"
MOST_PASSES = 10_000
COLOURS = {False: figures.BLUE, True: figures.ORANGE}


def run(
    config: Config, device: torch.device, passes: Sequence[int], limit: float, seeds: int
) -> dict[str, Any]:
    """Train with each number of passes, without and with a limit on KL.

    Args:
        config: mission, networks, and with `learning.training_steps` how long.
        device: where.
        passes: values of `learning.data_passes`.
        limit: of `learning.kl_limit` [nat]; 0 = only without.
        seeds: trainings of each.

    Returns:
        `settings`, `machine`, `rows`.
    """
    machine = harness.announce_machine(device)
    rows = [
        _row(
            with_overrides(
                config, f"learning.data_passes={number}", f"learning.kl_limit={kl_limit!r}"
            ),
            device,
            seeds,
        )
        for kl_limit in ([0.0, limit] if limit else [0.0])
        for number in passes
    ]
    settings = {"seeds": seeds, "kl_limit": limit, "configuration": config_to_dict(config)}
    return {"settings": settings, "machine": machine, "rows": rows}


def _row(config: Config, device: torch.device, seeds: int) -> dict[str, Any]:
    learning = config.learning
    name = f"{learning.data_passes} passes, limit {learning.kl_limit:g}"
    trainings = learn_from_seeds(config, device, seeds, name)

    def late(metric: str) -> float:
        return mean_of(trainings, lambda c: last_fifth(c["metrics"].get(metric, [0.0])))

    return {
        "data_passes": learning.data_passes,
        "kl_limit": learning.kl_limit,
        "transitions": trainings[0]["transitions"],
        "transitions_per_s": mean_of(trainings, lambda one: one["transitions"] / one["seconds"]),
        **validation_columns(trainings),
        **{metric: late(metric) for metric in ("kl", "explained_variance", "policy_entropy")},
        "held_back": mean_of(trainings, lambda one: _mean(one["metrics"].get("kl_halted", [0.0]))),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table(found: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = [
        (
            str(row["data_passes"]),
            f"{row['kl_limit']:g}" if row["kl_limit"] else "–",
            seeds_text(row["returns"]),
            f"{row['roi_entropy']:.4f}",
            f"{row['kl']:.4f}",
            f"{row['explained_variance']:.3f}",
            harness.number_text(row["held_back"], ".0%"),
            f"{row['transitions_per_s']:,.0f}",
        )
        for row in found["rows"]
    ]
    header = (
        *("passes", "KL limit", "return", "ROI entropy", "KL", "explained variance"),
        *("held back", "transitions/s"),
    )
    title = f"After {found['rows'][0]['transitions']:,} transitions"
    seeds = number_of_seeds(found["settings"]["seeds"])
    return harness.table_text(f"{title}; {seeds}", header, lines)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw return, KL and explained variance against passes."""
    figure = figures.make_figure(11, 3.6)
    panels = figure.subplots(1, 3)
    names = ("return", "kl", "explained_variance")
    labels = ("validation return, 95 % over seeds", "KL [nat]", "explained variance")
    for axes, name, label in zip(panels, names, labels, strict=True):
        for limited in (False, True):
            rows = [row for row in found["rows"] if (row["kl_limit"] > 0) is limited]
            if not rows:
                continue
            shown = f"kl_limit {rows[0]['kl_limit']:g}" if limited else "no limit"
            errors = None
            if name == "return":
                errors = return_errors([row["returns"] for row in rows])
            axes.errorbar(
                [row["data_passes"] for row in rows], [row[name] for row in rows], errors,
                marker="o", capsize=3, color=COLOURS[limited], label=shown,
            )  # fmt: skip
        axes.set(xscale="log", xlabel="data passes", ylabel=label)
        ticks = list(dict.fromkeys(row["data_passes"] for row in found["rows"]))
        figures.tick_at(axes, ticks)
        figures.tidy(axes)
    panels[0].legend(frameon=False)
    figures.save(figure, path, found["machine"]["device"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = Parser(
        "learning.sample_reuse",
        "Compare numbers of passes over the same transitions.",
        "params_fast.yaml",
    )
    parser.add_argument("--passes", default=PASSES, metavar="P,…", help=f"({PASSES})")
    parser.add_argument(
        "--kl-limit", type=float, default=0.02, metavar="NAT", help="of half of the rows (0.02)"
    )
    parser.add_trainings(steps=40, seeds=3)
    return parser.publish(parser.parse_args(arguments), _measure, table, draw)


def _measure(options: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    passes = parse_numbers("--passes", options.passes, PASSES, MOST_PASSES)
    if not 0 <= options.kl_limit <= 1e9:
        raise ConfigError(f"--kl-limit {options.kl_limit:g}: give a number of nat, 0 = none")
    config = with_trainings(config, options)
    return run(config, device, passes, options.kl_limit, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
