"""The command line of checks that take a params file and a device and end with one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from marl_framework.command_line import BAD_INPUT, FAILED, Parser, add_overrides
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config, resolve_config_path
from marl_framework.config.model import Config
from marl_framework.device import resolve_device

Check = Callable[[Config, torch.device], tuple[bool, str]]
"""Returns whether all is well, and a line that says what was found."""


def run_check(name: str, check: Check, arguments: Sequence[str] | None) -> int:
    """Run a check; return 0 if all is well, 1 if not, 2 for bad input."""
    parser = Parser(prog=f"python -m benchmarks.gpu.{name}")
    parser.add_argument("--config", default="params_gpu.yaml", metavar="FILE", help="params file")
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N or cpu")
    add_overrides(parser)
    options = parser.parse_args(arguments)
    try:
        device = resolve_device(options.device)
        config = load_config(resolve_config_path(options.config), options.overrides)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    if device.type == "cuda":
        torch.cuda.set_device(device)
    well, line = check(config, device)
    print(line)
    return 0 if well else FAILED
