"""Train a team or fly missions, as configured in a params file: `python -m marl_framework.main`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from marl_framework.command_line import BAD_INPUT, Parser, as_program
from marl_framework.config.errors import ConfigError
from marl_framework.training.ranks import Ranks


class _Parser(Parser):
    """Parser that reports an error once, not on each rank."""

    def error(self, message: str) -> NoReturn:
        with suppress(ConfigError):  # incomplete variables of torchrun
            ranks = Ranks.of()
            if not ranks.leads:
                ranks.wait_for_leader()
                sys.exit(BAD_INPUT)
        super().error(message)


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    from marl_framework.training.options import add_main_options

    parser = _Parser(prog="python -m marl_framework.main", description=__doc__)
    add_main_options(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 failed, 2 bad input or 130 interrupted."""
    from marl_framework.training.command import run

    return run(make_parser().parse_args(arguments))


def command() -> int:
    """Run the command line as a program; return its exit code."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import record

        return as_program(lambda: int(record(main)() or 0))  # torchrun prints the recorded error
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
