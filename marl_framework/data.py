"""List the named maps with their origin: `python -m marl_framework.data list`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from marl_framework.command_line import Parser, as_program
from marl_framework.config.named_maps import DATA, MAPS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0."""
    parser = Parser(prog="python -m marl_framework.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="print each map with pixel size, licence, source and checksum")
    parser.parse_args(arguments)
    for name, found in MAPS.items():
        print(f"{DATA}{name}: {found.meaning}")
        print(f"  pixel: {found.pixel}")
        print(f"  licence: {found.licence}")
        print(f"  source: {found.source}")
        print(f"  sha256: {found.sha256 or 'a file of the installed package'}")
    return 0


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
