"""Trains the search planner's map predictor: `python -m marl_framework.predict`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from marl_framework.command_line import as_program, loaded
from marl_framework.runs.guard import guarded
from marl_framework.runs.log import RunLog
from marl_framework.training.rounds_command import configured, rounds_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    options = rounds_parser("predict", __doc__, "params_predict.yaml").parse_args(arguments)
    return guarded(lambda log: _run(options, log))


def _run(options: argparse.Namespace, log: RunLog) -> int:
    config = configured(options)

    # They load PyTorch: help and bad input come at once.
    from marl_framework.prediction.trainer import PredictorTrainer
    from marl_framework.training.rounds import train_in_rounds

    loaded()
    return train_in_rounds(PredictorTrainer, config, options, log)


def command() -> int:
    """Run the command line as a program of its own; return its exit code."""
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
