"""Train COMALoss on VMAS's navigation: `python -m benchmarks.learning.coma_navigation`.

Runs `examples/torchrl_coma.py` with each seed. The return of an iteration is the mean return of an
agent over the episodes that end in it. This needs the extra `torchrl`, and VMAS.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from statistics import mean
from typing import Any

from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.run_statistics import seeds_text
from benchmarks.helpers.text import table_text

_AVERAGED = 5  # number of iterations at the start and at the end whose returns are averaged


def measure(job: Job) -> dict[str, Any]:
    """Train with each seed; return the mean return of each iteration."""
    example = import_module("examples.torchrl_coma")
    given = ["--iterations", str(job.options.iterations), "--device", str(job.device)]
    runs = []
    for seed in job.options.seeds:
        options = example.parser().parse_args([*given, "--seed", str(seed)])
        started = time.perf_counter()
        returns = example.train(options)
        runs.append(
            {"seed": seed, "returns": returns, "seconds": time.perf_counter() - started}
            | {"options": vars(options)}
        )
    return {"runs": runs}


def table(results: Mapping[str, Any]) -> str:
    """Return the first and last returns, averaged over seeds, as text."""
    runs = results["runs"]
    options = runs[0]["options"]
    frames = len(runs[0]["returns"]) * options["num_envs"] * options["steps"]
    line = (
        str(len(runs)),
        f"{frames:,}",
        seeds_text([mean(run["returns"][:_AVERAGED]) for run in runs]),
        seeds_text([mean(run["returns"][-_AVERAGED:]) for run in runs]),
    )
    title = f"Return of an agent in VMAS {options['scenario']}; more is better"
    last = f"last {_AVERAGED} iterations [95 %]"
    return table_text(title, ("seeds", "frames", f"first {_AVERAGED} [95 %]", last), [line])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    parser = Parser("learning.coma_navigation", "Train COMALoss on VMAS.", "params_fast.yaml")
    parser.add_numbers("--seeds", "1,2,3", "training seeds", most=2**20, least=0)
    parser.add_number("--iterations", 100, "iterations of a training", 1, 10**6)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
