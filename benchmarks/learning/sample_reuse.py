"""Compare passes over the same transitions: `python -m benchmarks.learning.sample_reuse`.

Trainings differ only in `learning.data_passes`, without and with `learning.kl_limit`, over the same
number of transitions. Columns: return of the validation missions with its interval over training
seeds; KL between the policies before and after a training step and explained variance of the
critic, both over the last fifth of the training; share of the actor's updates that the limit
stopped; transitions per second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.helpers import figures
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.text import number_text, table_text
from benchmarks.helpers.trainings import Run, add_steps, last_fifth, measure_training
from marl_framework.config.model import Config
from marl_framework.evaluation.statistics import student_interval

PASSES = "1,2,3,5,10,20,40"
MOST_PASSES = 10_000
MOST_TRAININGS = 1000
COLOURS = {False: figures.BLUE, True: figures.ORANGE}


def measure(job: Job) -> dict[str, Any]:
    """Train with each number of passes, without and with a limit on KL; return `rows`."""
    limit, seeds = job.options.kl_limit, job.options.seeds
    rows = [
        _row(
            with_overrides(
                job.config, f"learning.data_passes={number}", f"learning.kl_limit={kl_limit!r}"
            ),
            job.device,
            seeds,
        )
        for kl_limit in ([0.0, limit] if limit else [0.0])
        for number in job.options.passes
    ]
    return {"settings": {"seeds": seeds, "kl_limit": limit}, "rows": rows}


def _row(config: Config, device: torch.device, seeds: int) -> Run:
    learning = config.learning
    name = f"{learning.data_passes} passes, limit {learning.kl_limit:g}"
    trainings = _train(config, device, seeds, name)
    return {
        "data_passes": learning.data_passes,
        "kl_limit": learning.kl_limit,
        "transitions": trainings[0]["transitions"],
        "transitions_per_s": mean(one["transitions"] / one["seconds"] for one in trainings),
        **_validation_columns(trainings),
        **summarise([one["metrics"] for one in trainings]),
    }


def _train(config: Config, device: torch.device, seeds: int, name: str) -> list[Run]:
    """Measure a training for each of `seeds` seeds, counted from `environment.seed`."""
    results = []
    for seed in range(config.environment.seed, config.environment.seed + seeds):
        note = _progress(f"{name}, seed {seed}")
        chosen = with_overrides(config, f"environment.seed={seed}")
        results.append(measure_training(chosen, device, note))
    return results


def _progress(name: str) -> Callable[[str], None]:
    end = "\r" if sys.stderr.isatty() else "\n"
    return lambda text: print(f"{name}: {text}", end=end, file=sys.stderr, flush=True)


def _validation_columns(trainings: Sequence[Run]) -> Run:
    """Return columns of a row: means of `return` and `roi_entropy`, and `returns` by seed."""
    returns = [run["validation"]["return"] for run in trainings]
    return {
        "return": mean(returns),
        "returns": returns,
        "roi_entropy": mean(run["validation"]["roi_entropy"] for run in trainings),
    }


def summarise(trainings: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return the metrics of trainings over their last fifth, and `held_back` over all of it."""
    late = {
        name: mean(last_fifth(metrics.get(name, [0.0])) for metrics in trainings)
        for name in ("kl", "explained_variance", "policy_entropy")
    }
    halted = mean(mean(metrics.get("kl_halted", [0.0])) for metrics in trainings)
    return {**late, "held_back": halted}


def _title(results: Run) -> str:
    """Return a title with the numbers of transitions and seeds per row."""
    seeds = results["settings"]["seeds"]
    described = "1 seed" if seeds == 1 else f"{seeds} seeds, with 95 % intervals over them"
    return f"After {results['rows'][0]['transitions']:,} transitions; {described}"


def table(results: dict[str, Any]) -> str:
    """Return all rows as text."""
    lines = [
        (
            str(row["data_passes"]),
            f"{row['kl_limit']:g}" if row["kl_limit"] else "–",
            seeds_text(row["returns"]),
            f"{row['roi_entropy']:.4f}",
            f"{row['kl']:.4f}",
            f"{row['explained_variance']:.3f}",
            number_text(row["held_back"], ".0%"),
            f"{row['transitions_per_s']:,.0f}",
        )
        for row in results["rows"]
    ]
    header = (
        *("passes", "KL limit", "return", "ROI entropy", "KL", "explained variance"),
        *("held back", "transitions/s"),
    )
    return table_text(_title(results), header, lines)


def _return_errors(rows: Sequence[Run]) -> list[float] | None:
    """Return error bars: half the interval over seeds of each row's returns, or None."""
    intervals = [student_interval(row["returns"]) for row in rows]
    halves = [(ends[1] - ends[0]) / 2 for ends in intervals if ends is not None]
    return halves if len(halves) == len(rows) else None


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw return, KL and explained variance against passes."""
    figure = figures.make_figure(11, 3.6)
    panels = figure.subplots(1, 3)
    names = ("return", "kl", "explained_variance")
    labels = ("validation return, 95 % over seeds", "KL [nat]", "explained variance")
    for axes, name, label in zip(panels, names, labels, strict=True):
        for limited in (False, True):
            rows = [row for row in results["rows"] if (row["kl_limit"] > 0) is limited]
            if not rows:
                continue
            axes.errorbar(
                [row["data_passes"] for row in rows], [row[name] for row in rows],
                _return_errors(rows) if name == "return" else None,
                marker="o", capsize=3, color=COLOURS[limited],
                label=f"kl_limit {rows[0]['kl_limit']:g}" if limited else "no limit",
            )  # fmt: skip
        axes.set(xscale="log", xlabel="data passes", ylabel=label)
        figures.tick_at(axes, list(dict.fromkeys(row["data_passes"] for row in results["rows"])))
        figures.tidy(axes)
    panels[0].legend(frameon=False)
    figures.save(figure, path, results["machine"]["device"])


def limit_of(text: str) -> float:
    """Read `--kl-limit` [nat]."""
    if not 0 <= float(text) <= 1e9:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 (no limit) to 1e9")
    return float(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser(
        "learning.sample_reuse",
        "Compare numbers of passes over the same transitions.",
        "params_fast.yaml",
    )
    parser.add_numbers("--passes", PASSES, "numbers of passes", MOST_PASSES)
    parser.add_argument(
        "--kl-limit", type=limit_of, default=0.02, metavar="NAT", help="limit of half of the rows"
    )
    add_steps(parser, 40)
    parser.add_number("--seeds", 3, "trainings per row", 1, MOST_TRAININGS)
    return parser.publish(arguments, measure, table, draw)


if __name__ == "__main__":
    sys.exit(main())
