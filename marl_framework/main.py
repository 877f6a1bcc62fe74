"""Trains a team, or flies missions, as a params file says: `python -m marl_framework.main`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from marl_framework.command_line import BAD_INPUT, Parser, add_jobs, add_overrides, as_program
from marl_framework.training.ranks import Ranks

_SHORT_FORMS = {
    "update_interval": "learning.update_interval",
    "batch_size": "learning.batch_size",
    "max_episodes": "learning.training_steps",
    "a_lr": "learning.actor.learning_rate",
    "c_lr": "learning.critic.learning_rate",
    "device": "compute.device",
}
"""Options that override one key; `-` may stand for `_`."""


class _Parser(Parser):
    """Reports an error once, not on each rank."""

    def error(self, message: str) -> NoReturn:
        ranks = Ranks.of()
        if not ranks.leads:
            ranks.wait_for_leader()
            sys.exit(BAD_INPUT)
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m marl_framework.main", description=__doc__)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="params file: a path, or a name in params/ (default: $CONFIG_FILE_PATH, else the "
        "mission of --checkpoint, else params.yaml)",
    )
    add_overrides(parser)
    parser.add_argument(
        "--run-name",
        metavar="NAME",
        help="folder of this run in logging.directory (default: title and time)",
    )
    parser.add_argument(
        "--seeds",
        metavar="N,…",
        help="train several runs, NAME-N with environment.seed=N each; sum them up in "
        "NAME-seeds.json; with --resume go on where it stopped",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="SECTION.KEY=V,…",
        help="with --seeds: train them with each of these values, NAME-V-N; repeatable, then with "
        "all combinations",
    )
    for name, key in _SHORT_FORMS.items():
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parser.add_argument(*spellings, metavar="VALUE", help=f"sets {key}")
    add_jobs(parser, "--seeds")
    parser.add_argument("--together", action="store_true", help=argparse.SUPPRESS)  # former option
    parser.add_argument(
        "--profile",
        type=int,
        default=0,
        metavar="N",
        help="profile N training steps with torch.profiler; write profile.json",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="RUN_OR_FILE",
        help="deployment: the trained team; a checkpoint file, a run folder or pretrained:student",
    )
    parser.add_argument(
        "--init-from",
        metavar="RUN_OR_FILE",
        help="start with the weights of a trained team: a run folder, a checkpoint file or "
        "pretrained:student; a resumed run has them already",
    )
    parser.add_argument(
        "--missions",
        type=int,
        metavar="N",
        help="deployment: number of missions, each over its own window of the map (default: 1)",
    )
    parser.add_argument(
        "--html",
        action="store_true",
        help="deployment: also write mission.html, a page to watch each mission on",
    )
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the complete configuration as a params file and exit",
    )
    parser.add_argument(
        "--archive-earlier",
        action="store_true",
        help="first move an earlier run of this name to training_history/; not with --resume",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run of this name; start it if there is none",
    )
    parser.add_argument(
        "--allow-changed",
        action="append",
        default=[],
        metavar="KEY",
        help="with --resume: accept a new value of this key; repeatable",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 done, 1 the training failed, 2 bad input, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    for name, key in _SHORT_FORMS.items():
        if getattr(options, name) is not None:
            options.overrides.append(f"{key}={getattr(options, name)}")
    from marl_framework.training.command import run

    return run(options)


def command() -> int:
    """Run the command line as a program of its own; return its exit code."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import record

        return as_program(lambda: int(record(main)() or 0))  # torchrun shows the error it notes
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
