"""Command line of `python -m marl_framework.fly`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from marl_framework.command_line import (
    Parser,
    add_checkpoint,
    add_overrides,
    as_program,
    loaded,
)
from marl_framework.config.errors import ConfigError
from marl_framework.config.flying import RECORD, SIMULATED
from marl_framework.config.loading import resolve_config_path
from marl_framework.config.parts import LEARNED, PLANNER_NAMES
from marl_framework.evaluation.options import SEED
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.runs.names import check_run_name, checkpoint_file
from marl_framework.training.guard import guarded
from marl_framework.training.options import refuse

_MEANING = "Fly a team whose UAVs decide in the air, each from what it has read and heard."
_PLANNERS = [name for name in PLANNER_NAMES if name != "oracle"]  # which sees the true map
_ONE_UAV = ("vehicle", "camera", "radio", "listen", "time_factor")  # options of --uav alone
_REPLAY = ("replay", "checkpoint")  # options of a replay


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = Parser(prog="python -m marl_framework.fly", description=_MEANING)
    one_of, add = parser.add_mutually_exclusive_group(required=True), parser.add_argument
    text = "fly the whole team here, on simulated vehicles, and compare it with the simulator"
    one_of.add_argument("--dry-run", action="store_true", help=text)
    text = "fly only this UAV of the team, from 1"
    one_of.add_argument("--uav", type=int, metavar="N", help=text)
    text = "check that fresh pilots decide as in a record: a run folder, or its flight.mcap"
    one_of.add_argument("--replay", metavar="RUN_OR_FILE", help=text)
    text = "number of UAVs in the team (default: experiment.missions.n_agents)"
    add("--of", type=int, metavar="M", help=text)
    text = f"MAVLink address such as udpin://0.0.0.0:14541, or {SIMULATED} (the default)"
    add("--vehicle", default=SIMULATED, metavar="ADDRESS", help=text)
    text = f"folder:PATH where frames appear, stream:URL, or {SIMULATED} (the default)"
    add("--camera", default=SIMULATED, metavar="WHERE", help=text)
    text = "address of another UAV's radio, such as tcp/10.0.0.1:7447; repeatable"
    add("--radio", action="append", default=[], metavar="ADDRESS", help=text)
    text = "address where radios of others connect, such as tcp/0.0.0.0:7447; repeatable"
    add("--listen", action="append", default=[], metavar="ADDRESS", help=text)
    text = "speed of the clock of a simulated UAV (default: 1)"
    add("--time-factor", type=float, default=1.0, metavar="X", help=text)
    add_checkpoint(parser)
    text = f"planner: {', '.join(_PLANNERS)}, or your own as module.Class (default: {LEARNED})"
    add("--policy", default=LEARNED, metavar="NAME", help=text)
    text = "params file of the mission (default: the checkpoint's configuration)"
    add("--config", metavar="FILE", help=text)
    add_overrides(parser, "override a key of the configuration; repeatable")
    text = f"seed of the mission, as in evaluate (default: {SEED})"
    add("--seed", type=int, default=SEED, metavar="N", help=text)
    text = (
        "least horizontal distance between the ways of two UAVs [m]; 0 for the simulator's rules "
        "(default: deployment.separation)"
    )
    add("--separation", type=float, metavar="M", help=text)
    text = "also write a page to watch the flight on; that of one UAV is renewed after every move"
    add("--html", action="store_true", help=text)
    text = "folder of this flight in logging.directory (default: title and time)"
    add("--run-name", metavar="NAME", help=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 failed, 2 bad input or 130 interrupted."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    # Again without defaults: options that are not on the command line are None.
    given = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(vars(options))))
    return guarded(lambda _: _run(options, given), again="then run the command again")


def _run(options: argparse.Namespace, given: argparse.Namespace) -> int:
    _check(options, given)

    # Imported here, because they load PyTorch: help and bad input are reported at once.
    import torch

    from marl_framework.flying.command import dry_run
    from marl_framework.flying.dry_run import check_supported
    from marl_framework.flying.replay import replay
    from marl_framework.flying.solo import fly_one
    from marl_framework.planners.team import find_checkpoint, load_team, mission_config

    loaded()
    if options.replay is not None:
        return replay(_record_file(options.replay), options.checkpoint)
    if options.of is not None:
        options.overrides.append(f"experiment.missions.n_agents={options.of}")
    checkpoint = None
    if options.checkpoint is not None:
        load = load_team if options.policy == LEARNED else find_checkpoint
        checkpoint = load(options.checkpoint)
    config = mission_config(options.config, options.overrides, checkpoint)
    check_supported(config, options.vehicle == SIMULATED)
    if options.separation is None:
        options.separation = config.deployment.separation
    # `fly_into_run` also serves commands with these options.
    options.check = options.archive_earlier = False
    fly = dry_run if options.dry_run else fly_one
    return fly(config, torch.device("cpu"), checkpoint, options)


def _record_file(where: str) -> Path:
    """Return the record that `--replay` names. Raises ConfigError if it does not exist."""
    path = Path(where) / RECORD if os.path.isdir(where) else Path(where)
    if not os.path.isfile(path):
        raise ConfigError(f"--replay {path}: no such file; give a run folder or its {RECORD}")
    return path


def _check(options: argparse.Namespace, given: argparse.Namespace) -> None:
    """Check all options before PyTorch loads; `given` has None for those that are not given."""
    if options.replay is not None:
        others = [name for name in vars(given) if name not in _REPLAY]
        refuse(given, others, "cannot be used with --replay; only --checkpoint can")
        _record_file(options.replay)
        return
    if options.dry_run:
        refuse(given, _ONE_UAV, "cannot be used with --dry-run; use it with --uav")
    if options.uav is not None and not 1 <= options.uav <= (options.of or options.uav):
        raise ConfigError(f"--uav {options.uav}: use a number from 1 to --of")
    factor, simulated = options.time_factor, options.vehicle == options.camera == SIMULATED
    if not 0 < factor < float("inf") or (factor != 1 and not simulated):
        raise ConfigError(
            f"--time-factor {factor:g}: use a number above 0, and 1 with a real vehicle or camera"
        )
    if options.policy not in _PLANNERS and "." not in options.policy:
        known = ", ".join(_PLANNERS)
        raise ConfigError(f"--policy {options.policy}: use {known}, or your own module.Class")
    if options.policy == LEARNED and options.checkpoint is None:
        raise ConfigError("--checkpoint is missing; give a trained team, or a planner as --policy")
    if not 0 <= options.seed < MAX_SEED:
        raise ConfigError(f"--seed {options.seed}: use a whole number from 0 to {MAX_SEED - 1}")
    if options.separation is not None and not 0 <= options.separation < float("inf"):
        raise ConfigError(f"--separation {options.separation:g}: use a distance of 0 m or more")
    if options.run_name is not None:
        check_run_name(options.run_name)
    if options.checkpoint is not None:
        checkpoint_file(options.checkpoint)
    if options.config is not None:
        resolve_config_path(options.config)


command = partial(as_program, main)
