"""A predictor's training from its start to its end: new or resumed, finished or interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import closing

import torch
from torch.utils.tensorboard import SummaryWriter

from marl_framework.command_line import INTERRUPTED
from marl_framework.config.model import Config
from marl_framework.device import describe_device, resolve_device
from marl_framework.prediction.figures import predictions_figure, reliability_figure
from marl_framework.prediction.trainer import PredictorTrainer
from marl_framework.runs.checkpoint_store import BEST, LAST, CheckpointStore
from marl_framework.runs.files import link_file
from marl_framework.runs.folder import RunFolder
from marl_framework.runs.log import RunLog
from marl_framework.runs.process import this_process
from marl_framework.runs.start import start_run
from marl_framework.training.ranks import Ranks
from marl_framework.training.resume import Resumption, find_run, go_on
from marl_framework.training.signals import interruptible


def train(config: Config, name: str | None, *, check: bool, resume: bool, log: RunLog) -> int:
    """Train a predictor under a run name; return the exit code: 0 done, 130 interrupted.

    Args:
        config: what to train.
        name: folder below `logging.directory`; None for one from title and time.
        check: only see whether the training could start.
        resume: continue the run of this name; start it where there is none.
        log: is attached to the run folder.

    Raises:
        ConfigError: the training cannot start.
        OSError: its state could not be saved.
    """
    device = resolve_device(config.compute.device)
    trainer = PredictorTrainer(config, device)
    if check:
        print("the configuration is valid")
        return 0
    found = None
    if resume and name is not None:
        found = find_run(config.logging.directory, name, config, report=_warn)
    if found is not None and found.finished and found.run is not None:
        print(f"finished already: {found.run.summary}")
        found.run.release()
        return 0
    run = _claim(found, config, device, name)
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
    run.write_status("training", process=this_process())
    found: dict[str, float] = {}
    store = CheckpointStore(run.checkpoints, trainer.config.logging.checkpoints_kept, _warn)
    with closing(SummaryWriter(str(run.tensorboard))) as writer:
        while not (trainer.is_over() or trainer.interrupted):
            found = trainer.round()
            _log(writer, trainer, found)
            if not store.save(trainer.rounds, trainer.state_dict()):
                raise OSError(f"the state after round {trainer.rounds} could not be saved")
            run.write_status("training", training_step=trainer.rounds, last=found)
    if trainer.is_over():
        found = found | _draw(trainer, run)
    results = {"finished": trainer.is_over(), "training_steps": trainer.rounds, "last": found}
    seconds = time.perf_counter() - start
    run.write_summary(results, {"seconds": seconds}, {"device": describe_device(trainer.device)})
    if not trainer.is_over():
        run.write_status("interrupted")
        print(f"interrupted; its state is in {run.path}; continue with --resume", file=sys.stderr)
        return INTERRUPTED
    link_file(run.checkpoints / LAST, run.checkpoints / BEST)
    run.write_status("finished")
    print(f"done: {run.summary}")
    return 0


def _draw(trainer: PredictorTrainer, run: RunFolder) -> dict[str, float]:
    """Draw what the trained predictor expects of missions that it has not learned from."""
    pictures, reliability = trainer.examine()
    predictions_figure(pictures, trainer.config, run.figures / "predictions.png")
    reliability_figure(reliability, run.figures / "reliability.png")
    return {"examined_calibration_error": reliability.error()}


def _log(writer: SummaryWriter, trainer: PredictorTrainer, found: Mapping[str, float]) -> None:
    for name, value in found.items():
        writer.add_scalar(f"prediction/{name}", value, trainer.rounds)
    flown = [value for name, value in found.items() if name.startswith("roi_entropy")]
    mean = f"{sum(flown) / len(flown):.4f}" if flown else "–"
    print(
        f"round {trainer.rounds}/{trainer.config.prediction.rounds} | ROI entropy {mean} | error "
        f"{found['error']:.4f}, of the belief {found['belief_error']:.4f} | calibration error "
        f"{found['calibration_error']:.4f}",
        flush=True,
    )


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
