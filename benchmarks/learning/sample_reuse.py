"""How often may the same transitions be learned from? `python -m benchmarks.sample_reuse`.

Trainings that differ in `learning.data_passes` alone, with and without `learning.kl_limit`, over
the same number of transitions. Columns: return of the validation missions with its standard error,
KL between the policy that flew and the one after a training step, explained variance of the critic,
both over the last fifth of the training, the share of the actor's updates that the limit held back,
and transitions a second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks import harness
from benchmarks.learning import last_fifth, learn, mean_of, progress
from benchmarks.training import add_device, read_options, with_overrides
from benchmarks.update_interval import numbers
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import describe_device

SUITE = "sample_reuse"
PASSES = (1, 2, 3, 5, 10, 20, 40)
COLOURS = {False: "#0072B2", True: "#D55E00"}


def run(
    config: Config, device: torch.device, passes: Sequence[int], limit: float, seeds: int
) -> dict[str, Any]:
    """Train with each number of passes, without and with a limit on KL.

    Args:
        config: mission, networks, and with `n_episodes` how long.
        device: where.
        passes: values of `learning.data_passes`.
        limit: of `learning.kl_limit` [nat]; 0 = only without.
        seeds: trainings of each.

    Returns:
        `settings`, `machine`, `rows`.
    """
    machine = harness.describe_machine(device)
    harness.warn_if_busy(machine)
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
    learning, first = config.learning, config.environment.seed
    name = f"{learning.data_passes} passes, limit {learning.kl_limit:g}"
    courses = [
        learn(
            with_overrides(config, f"environment.seed={first + number}"),
            device,
            progress(f"{name}, seed {first + number}"),
        )
        for number in range(seeds)
    ]
    squares = mean_of(courses, lambda c: c["validation"]["return"]["standard_error"] ** 2)

    def late(metric: str) -> float:
        return mean_of(courses, lambda c: last_fifth(c["metrics"].get(metric, [0.0])))

    return {
        "data_passes": learning.data_passes,
        "kl_limit": learning.kl_limit,
        "transitions": courses[0]["transitions"],
        "transitions_per_s": mean_of(courses, lambda c: c["transitions"] / c["seconds"]),
        "return": mean_of(courses, lambda c: c["validation"]["return"]["mean"]),
        "return_standard_error": (squares / seeds) ** 0.5,
        "roi_entropy": mean_of(courses, lambda c: c["validation"]["roi_entropy"]["mean"]),
        **{metric: late(metric) for metric in ("kl", "explained_variance", "kl_halted")},
        "policy_entropy": late("policy_entropy"),
        "seeds": [c["validation"]["return"] for c in courses],
    }


def table(found: Mapping[str, Any]) -> str:
    """Return all rows as text."""
    lines = [
        (
            str(row["data_passes"]),
            f"{row['kl_limit']:g}" if row["kl_limit"] else "–",
            f"{row['return']:.3f} ± {row['return_standard_error']:.3f}",
            f"{row['roi_entropy']:.4f}",
            f"{row['kl']:.4f}",
            f"{row['explained_variance']:.3f}",
            f"{row['kl_halted']:.0%}",
            f"{row['transitions_per_s']:,.0f}",
        )
        for row in found["rows"]
    ]
    header = (
        *("passes", "KL limit", "return", "ROI entropy", "KL", "explained variance"),
        *("held back", "transitions/s"),
    )
    title = f"After {found['rows'][0]['transitions']:,} transitions"
    return harness.table_text(f"{title}; {found['settings']['seeds']} seeds", header, lines)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw return, KL and explained variance against passes."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    names = ("return", "kl", "explained_variance")
    labels = ("validation return, ± standard error", "KL [nat]", "explained variance")
    for axes, name, label in zip(panels, names, labels, strict=True):
        for limited in (False, True):
            rows = [row for row in found["rows"] if (row["kl_limit"] > 0) is limited]
            if not rows:
                continue
            shown = f"kl_limit {rows[0]['kl_limit']:g}" if limited else "no limit"
            errors = [row["return_standard_error"] for row in rows] if name == "return" else None
            axes.errorbar(
                [row["data_passes"] for row in rows], [row[name] for row in rows], errors,
                marker="o", capsize=3, color=COLOURS[limited], label=shown,
            )  # fmt: skip
        axes.set(xscale="log", xlabel="data passes", ylabel=label)
        ticks = list(dict.fromkeys(row["data_passes"] for row in found["rows"]))
        axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.suptitle(found["machine"]["device"], fontsize=10)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    parser = harness.Parser(SUITE, "Compare numbers of passes over the same transitions.")
    add_device(parser)
    parser.set_defaults(config="params_fast.yaml")
    parser.add_argument("--passes", type=numbers, default=PASSES, metavar="P,P")
    parser.add_argument(
        "--kl-limit", type=float, default=0.02, metavar="NAT", help="of half of the rows (0.02)"
    )
    parser.add_argument("--steps", type=int, default=40, metavar="S", help="training steps (40)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="trainings a row (1)")
    options = parser.parse_args(arguments)
    return harness.answer(options.out, lambda: _measured(options))


def _measured(options: argparse.Namespace) -> str:
    """Do what a command line asks for; return what it prints."""
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: give a number of trainings, 1 or more")
    if not 0 <= options.kl_limit <= 1e9:
        raise ConfigError(f"--kl-limit {options.kl_limit:g}: give a number of nat, 0 = none")
    options.overrides.append(f"learning.training_steps={options.steps}")
    config, device, path = read_options(options, SUITE)
    print(describe_device(device), flush=True)
    found = run(config, device, options.passes, options.kl_limit, options.seeds)
    return harness.publish(path, SUITE, found, table, draw)


if __name__ == "__main__":
    sys.exit(main())
