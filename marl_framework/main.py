"""Trains or flies what a params file describes: `python -m marl_framework.main`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from marl_framework.command_line import BAD_INPUT, Parser, add_overrides, told_warnings
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config, resolve_config_path
from marl_framework.config.model import Config
from marl_framework.evaluation.commands import deploy, fly_baseline
from marl_framework.planners.registry import LEARNED
from marl_framework.planners.team import Checkpoint, find_checkpoint, mission_config
from marl_framework.runs.files import check_run_name
from marl_framework.training.distributed import LeaderError, Ranks, check_ranks, rank_device
from marl_framework.training.launch import EXIT_FAILED, EXIT_INTERRUPTED, train

_SHORT_FORMS = {
    "update_interval": "learning.update_interval",
    "batch_size": "learning.batch_size",
    "max_episodes": "learning.training_steps",
    "a_lr": "learning.actor.learning_rate",
    "c_lr": "learning.critic.learning_rate",
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
        help="params file: a path, or a name in params/ (default: CONFIG_FILE_PATH, params.yaml)",
    )
    add_overrides(parser)
    parser.add_argument("--run-name", metavar="NAME", help="name of the folder of this run")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; short for compute.device")
    for name, key in _SHORT_FORMS.items():
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parser.add_argument(*spellings, metavar="VALUE", help=f"short for {key}")
    parser.add_argument(
        "--profile",
        type=int,
        default=0,
        metavar="N",
        help="record N training steps with torch.profiler into profile.json",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="RUN_OR_FILE",
        help="deployment: the trained team, a checkpoint or a run folder",
    )
    parser.add_argument(
        "--missions", type=int, metavar="N", help="deployment: windows of the map (default: 1)"
    )
    parser.add_argument("--check", action="store_true", help="check the configuration, do nothing")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on where the run of this name stopped; start it where there is none",
    )
    parser.add_argument(
        "--allow-changed",
        action="append",
        default=[],
        metavar="KEY",
        help="with --resume: this key may differ from what the run began with; may be repeated",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 done, 1 the training failed, 2 bad input, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    ranks = Ranks()
    try:
        ranks = Ranks.of()
        return _run(options, ranks)
    except ConfigError as error:
        if ranks.leads:
            print(f"error: {error}", file=sys.stderr, flush=True)
        ranks.wait_for_leader()
        return BAD_INPUT
    except LeaderError as error:
        ranks.wait_for_leader()
        return error.exit_code
    except KeyboardInterrupt:  # before or after the training
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        print(f"error: {reason}; go on with --resume once that is mended", file=sys.stderr)
        return EXIT_FAILED


def _run(options: argparse.Namespace, ranks: Ranks) -> int:
    config, checkpoint = _configuration(options, ranks)
    check_ranks(config, ranks)
    device = rank_device(config, ranks)
    missions = config.experiment.missions
    if missions.mission_mode == "deployment":
        return deploy(
            config, device, options.run_name, options.missions or 1, checkpoint, options.check
        )
    if config.experiment.policy != LEARNED:
        return fly_baseline(config, device, options.run_name, options.check)
    return train(
        config,
        device,
        options.run_name,
        check=options.check,
        profile=options.profile,
        resume=options.resume,
        allow_changed=options.allow_changed,
        ranks=ranks,
    )


def _configuration(options: argparse.Namespace, ranks: Ranks) -> tuple[Config, Checkpoint | None]:
    name = options.config or os.environ.get("CONFIG_FILE_PATH") or "params.yaml"
    overrides = list(options.overrides)
    for short, key in _SHORT_FORMS.items():
        if getattr(options, short) is not None:
            overrides.append(f"{key}={getattr(options, short)}")
    if options.device is not None:
        overrides.append(f"compute.device={options.device}")
    with told_warnings(ranks.leads):
        config = load_config(resolve_config_path(name), overrides)
    if options.run_name is not None:
        check_run_name(options.run_name)
    _check_options(options, config, ranks)
    if options.checkpoint is None:
        return config, None
    checkpoint = find_checkpoint(options.checkpoint)
    with told_warnings(False):  # said above
        return mission_config(name, overrides, checkpoint), checkpoint


def _check_options(options: argparse.Namespace, config: Config, ranks: Ranks) -> None:
    """Check options that the params file does not know.

    Raises:
        ConfigError: one makes no sense with this configuration.
    """
    missions = config.experiment.missions
    deployed = missions.mission_mode == "deployment"
    if ranks.count > 1 and (deployed or config.experiment.policy != LEARNED):
        raise ConfigError(
            f"torchrun: {ranks.count} ranks are for trainings; fly missions with python -m "
            "marl_framework.main"
        )
    if ranks.may_restart and options.run_name is None:
        raise ConfigError("torchrun --max-restarts: name the run to go on with by --run-name")
    if options.resume and options.run_name is None and not options.check:
        raise ConfigError("--resume: name the run to go on with by --run-name")
    if options.allow_changed and not options.resume:
        raise ConfigError("--allow-changed: is for --resume only")
    if options.profile < 0:
        raise ConfigError(
            f"--profile {options.profile}: give a number of training steps, 1 or more"
        )
    if options.profile and (deployed or config.experiment.policy != LEARNED):
        raise ConfigError(f"--profile {options.profile}: there is no training to record")
    if options.missions is not None and options.missions < 1:
        raise ConfigError(f"--missions {options.missions}: give a number of missions, 1 or more")
    for option in ("checkpoint", "missions"):
        if getattr(options, option) is not None and not deployed:
            raise ConfigError(
                f"--{option}: is for experiment.missions.mission_mode: deployment, and it is "
                f"{missions.mission_mode}"
            )
    if options.checkpoint is not None and config.experiment.policy != LEARNED:
        raise ConfigError(
            f"--checkpoint: experiment.policy: {config.experiment.policy} needs no trained team; "
            "choose learned"
        )


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import record

        sys.exit(record(main)())  # torchrun shows the error that it notes
    sys.exit(main())
