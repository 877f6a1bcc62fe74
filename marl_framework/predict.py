"""Train the map predictor of the search planner: `python -m marl_framework.predict`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from marl_framework.command_line import Parser, as_program, loaded
from marl_framework.config.loading import load_config
from marl_framework.runs.log import RunLog
from marl_framework.training.guard import guarded
from marl_framework.training.options import add_run_options, add_short_forms, read_start


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 failed, 2 bad input or 130 interrupted."""
    parser = Parser(prog="python -m marl_framework.predict", description=__doc__)
    add_run_options(parser, "params_predict.yaml")
    add_short_forms(parser, ["device"])
    options = parser.parse_args(arguments)
    return guarded(lambda log: _run(options, log))


def _run(options: argparse.Namespace, log: RunLog) -> int:
    start, config = read_start(options), load_config(options.config, options.overrides)

    # Imported here, because they load PyTorch: help and bad input are reported at once.
    from marl_framework.prediction.trainer import PredictorTrainer
    from marl_framework.training.rounds import train_in_rounds

    loaded()
    return train_in_rounds(PredictorTrainer, config, start, log)


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
