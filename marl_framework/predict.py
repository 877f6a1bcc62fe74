"""Trains the search planner's map predictor: `python -m marl_framework.predict`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

import torch
from torch.utils.tensorboard import SummaryWriter

from marl_framework.command_line import BAD_INPUT, Parser, add_overrides, plain_warnings
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config, resolve_config_path
from marl_framework.config.model import Config
from marl_framework.device import describe_device, resolve_device
from marl_framework.prediction.trainer import PredictorTrainer
from marl_framework.runs.checkpoint_store import BEST, LAST, CheckpointStore
from marl_framework.runs.files import check_run_name, link_file
from marl_framework.runs.folder import RunFolder
from marl_framework.runs.log import RunLog
from marl_framework.runs.start import start_run
from marl_framework.training.distributed import Ranks
from marl_framework.training.launch import EXIT_FAILED, EXIT_INTERRUPTED
from marl_framework.training.resume import Resumption, find_run, go_on
from marl_framework.training.signals import interruptible


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.predict", description=__doc__)
    parser.add_argument(
        "--config",
        default="params_predict.yaml",
        metavar="FILE",
        help="params file: a path, or a name in params/ (default: params_predict.yaml)",
    )
    add_overrides(parser)
    parser.add_argument("--run-name", metavar="NAME", help="folder in logging.directory")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; sets compute.device")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument(
        "--resume", action="store_true", help="continue the run of this name, or start it"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        with RunLog() as log, plain_warnings():
            return _run(options, log)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        print(f"error: {reason}; fix it, then continue with --resume", file=sys.stderr)
        return EXIT_FAILED


def _run(options: argparse.Namespace, log: RunLog) -> int:
    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"compute.device={options.device}")
    config = load_config(resolve_config_path(options.config), overrides)
    if options.run_name is not None:
        check_run_name(options.run_name)
    elif options.resume:
        raise ConfigError("--resume: name the run to continue with --run-name")
    device = resolve_device(config.compute.device)
    if options.check:
        PredictorTrainer(config, device)
        print("the configuration is valid")
        return 0
    found = None
    if options.resume:
        found = find_run(config.logging.directory, options.run_name, config, report=_warn)
    if found is not None and found.finished and found.run is not None:
        print(f"finished already: {found.run.summary}")
        found.run.release()
        return 0
    trainer = PredictorTrainer(config, device)
    run = _claim(found, config, device, options.run_name)
    try:
        log.attach(run.path)
        if found is not None and found.payload is not None:
            trainer.load_state_dict(found.payload)
        print(f"{describe_device(device)}\nrun folder: {run.path}", flush=True)
        with interruptible(trainer, Ranks()):
            return _train(trainer, run)
    finally:
        run.release()


def _claim(
    found: Resumption | None, config: Config, device: torch.device, name: str | None
) -> RunFolder:
    if found is None or found.run is None:
        return start_run(config, device, name)
    go_on(found, config, device)
    return found.run


def _train(trainer: PredictorTrainer, run: RunFolder) -> int:
    """Train; write logs, checkpoints and the summary; return the exit code."""
    start = time.perf_counter()
    found: dict[str, float] = {}
    store = CheckpointStore(run.checkpoints, trainer.config.logging.checkpoints_kept, _warn)
    with closing(SummaryWriter(str(run.tensorboard))) as writer:
        while not (trainer.is_over() or trainer.interrupted):
            found = trainer.round()
            _log(writer, trainer, found)
            if not store.save(trainer.rounds, trainer.state_dict()):
                raise OSError(f"the state after round {trainer.rounds} could not be saved")
            run.write_status("training", training_step=trainer.rounds, last=found)
    results = {"finished": trainer.is_over(), "training_steps": trainer.rounds, "last": found}
    seconds = time.perf_counter() - start
    run.write_summary(results, {"seconds": seconds}, {"device": describe_device(trainer.device)})
    if not trainer.is_over():
        run.write_status("interrupted")
        print(f"interrupted; its state is in {run.path}; continue with --resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    link_file(run.checkpoints / LAST, run.checkpoints / BEST)
    run.write_status("finished")
    print(f"done: {run.summary}")
    return 0


def _log(writer: SummaryWriter, trainer: PredictorTrainer, found: Mapping[str, float]) -> None:
    for name, value in found.items():
        writer.add_scalar(f"prediction/{name}", value, trainer.rounds)
    flown = [value for name, value in found.items() if name.startswith("roi_entropy")]
    mean = f"{sum(flown) / len(flown):.4f}" if flown else "–"
    print(
        f"round {trainer.rounds}/{trainer.config.prediction.rounds} | ROI entropy {mean} | error "
        f"{found['error']:.4f}, of the belief {found['belief_error']:.4f}",
        flush=True,
    )


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
