"""The training loop: collect, update, log, validate, save."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.graphs import make_graphs
from marl_framework.algorithms.policy import epsilon_at
from marl_framework.algorithms.ranks import mean_over_ranks, means_over_ranks
from marl_framework.algorithms.rollout import RolloutCollector
from marl_framework.algorithms.symmetry import make_symmetries
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.evaluation.figures import mission_figure
from marl_framework.evaluation.flight import evaluate, validate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from marl_framework.planners import LearnedPlanner
from marl_framework.runs.checkpoint_store import BEST, LAST, CheckpointKeeper
from marl_framework.runs.files import link_file
from marl_framework.runs.folder import RunFolder
from marl_framework.training.console import ProgressView
from marl_framework.training.distributed import Ranks
from marl_framework.training.hardware import HardwareMonitor
from marl_framework.training.logging import TrainingLogger
from marl_framework.training.numerics import check_numbers
from marl_framework.training.outcome import describe_machine, flown_metrics, results, timing
from marl_framework.training.resume import check_fit
from marl_framework.training.schedule import learning_rate_factor, passes
from marl_framework.training.streams import (
    renew_stream,
    restore_streams,
    stream_state,
    tell_of_other_streams,
)
from marl_framework.training.timing import StageTimer, profile_steps
from marl_framework.training.writers import check_writers, more_writers


class Trainer:
    """Trains the team that a configuration describes.

    Everything random follows from `environment.seed`: networks, missions and actions. Validation
    flies missions of its own and touches none of it. On several ranks each has a trainer; the
    first one calls `train`, the others `follow`.

    Args:
        config: the mission, the networks and the schedule.
        device: where everything lives.
        ranks: the place of this process among those that train together.
    """

    def __init__(self, config: Config, device: torch.device, ranks: Ranks | None = None) -> None:
        check_writers(config.logging.writers)
        self.config = config
        self.device = device
        self.ranks = Ranks() if ranks is None else ranks
        share = config.environment.num_envs // self.ranks.count
        self.task = MissionTask(
            MissionEnvironment(config, share, device, "training", rank=self.ranks.rank)
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.environment.seed)
            symmetries = make_symmetries(config, device)
            graphs = make_graphs(config.networks, device)
            self.coma = COMAWrapper(config.networks, self.task.sizes, device, symmetries, graphs)
        self.episodes = 0
        self.interrupted = False
        self.best_entropy = math.inf
        self._best: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._waiting: Mapping[str, Any] = {}
        self._resumed = False
        self._absent_streams: list[dict[str, Any]] = []
        self._seconds_before = 0.0
        self._evaluations_without_better = 0
        self._collector = RolloutCollector(self.task, len(self.task.metric_names), graphs)
        if self.ranks.leads:
            self._validation = MissionEnvironment(
                config, config.evaluation.missions, device, "validation"
            )
        self._planner = LearnedPlanner(self.coma, self.task.builder, self.task.environment.lattice)
        self._rollouts_per_step = config.rollouts_per_step

    def train(
        self, run: RunFolder, profile: int = 0, report: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Train until `n_episodes` training steps are made or patience ends.

        After `load_state_dict` it goes on from there.

        Args:
            run: where logs, checkpoints and figures go.
            profile: training steps to record with torch.profiler, 0 = none.
            report: shows warnings; a line of the progress view by default.

        Returns:
            What `summary.json` holds: `results`, `timing`, `machine`.

        Raises:
            NumericalError: more updates than `max_skipped_updates` were not finite.
        """
        missions, log = self.config.experiment.missions, self.config.logging
        allowed = self.config.networks.max_skipped_updates
        timer = StageTimer(self.device)
        bins = {"altitudes": self.config.altitudes}
        first = self.coma.training_steps
        with (
            ProgressView(missions.n_episodes, first) as progress,
            TrainingLogger(
                run.tensorboard if "tensorboard" in log.writers else None,
                log.scalar_interval,
                log.histogram_interval,
                bins,
                first if any(run.tensorboard.iterdir()) else None,
                report or progress.print,
                more_writers(log.writers, run.path, config_to_dict(self.config)),
            ) as logger,
            profile_steps(profile, run.path) as profiled,
            HardwareMonitor(self.device, run.path) as hardware,
        ):
            if self._waiting:
                logger.load_state_dict(self._waiting, self.device)
            keeper = CheckpointKeeper(run.checkpoints, log, report or progress.print)
            saved = first if self._resumed else None
            while self._goes_on():
                before = self.coma.training_steps
                metrics, counts = self._training_step(timer)
                step = self.coma.training_steps
                written = logger.log(step, metrics, counts)
                found: dict[str, float] = {}
                better = False
                if self._is_due(self.config.evaluation.interval, before):
                    with timer("validation"):
                        found, better = self._validate()
                    logger.write(step, found)
                self._last = written or self._last
                check_numbers(self.coma, allowed, written, run.path, progress.print)
                if written or found:
                    self._report(step, {**self._last, **found}, timer, logger, progress, hardware)
                else:
                    progress.update(step)
                if better:
                    with timer("checkpoint"):
                        keeper.save_best(self.state_dict(logger, timer))
                if self.ranks.any(keeper.is_due(step, before)):
                    with timer("checkpoint"):
                        saved = self._save(keeper, run, logger, timer) or saved
                if passes(log.figure_interval, before, step):
                    with timer("figure"):
                        self._draw_mission(run, logger, progress.print)
                profiled()
            if self.ranks.any(saved != self.coma.training_steps):
                saved = self._save(keeper, run, logger, timer) or saved
            if saved != self.coma.training_steps:
                raise OSError(
                    f"the state after training step {self.coma.training_steps} could not be saved"
                )
            if self._evaluations_without_better >= (missions.patience or math.inf):
                progress.print(
                    f"stopped after {self.coma.training_steps} training steps: "
                    f"{missions.patience} evaluations without a better validation entropy"
                )
            if not self.is_over():
                logger.forget()  # the checkpoint has it
            written = logger.flush()
            self._last = written or self._last
            check_numbers(self.coma, allowed, written, run.path, progress.print)
            if not self._best:
                link_file(run.checkpoints / LAST, run.checkpoints / BEST)
            self._draw_mission(run, logger, progress.print)
        return {
            "results": results(self, self._last, self._best, finished=self.is_over()),
            "timing": timing(self, timer, self._seconds_before),
            "machine": describe_machine(self, hardware.summary()),
        }

    def follow(self) -> None:
        """Train along with rank 0, which writes and validates: the same exchanges as in `train`."""
        timer = StageTimer(torch.device("cpu"))  # nobody reads it, so no GPU need wait for it
        while self._goes_on():
            before = self.coma.training_steps
            self._training_step(timer)
            timer.reset()
            if self._is_due(self.config.evaluation.interval, before) and self._validate()[1]:
                self._streams()
            if self.ranks.any(False):  # a checkpoint is due
                self._streams()
        if self.ranks.any(False):  # the last one is missing
            self._streams()

    def _goes_on(self) -> bool:
        """Whether there is another training step to make; the same on all ranks."""
        return not self.is_over() and not self.ranks.any(self.interrupted)

    def is_over(self) -> bool:
        """Whether there is nothing left to train."""
        missions = self.config.experiment.missions
        patient = self._evaluations_without_better < (missions.patience or math.inf)
        return self.coma.training_steps >= missions.n_episodes or not patient

    def interrupt(self) -> None:
        """Ask `train` to end after the training step under way; usable in signal handlers."""
        self.interrupted = True

    def _report(
        self,
        step: int,
        known: dict[str, float],
        timer: StageTimer,
        logger: TrainingLogger,
        progress: ProgressView,
        hardware: HardwareMonitor,
    ) -> None:
        """Show how fast the last interval was, where its time went and what the machine did."""
        speed, shares = timer.rates()["transitions"], timer.shares()
        logger.write(step, {f"share_{name}": share for name, share in shares.items()})
        figures = hardware.means()
        logger.write(step, {"transitions_per_second": speed, **figures})
        advice = hardware.advice(figures, shares)
        if advice:
            progress.print(advice)
        progress.update(
            step,
            episode_return=known.get("return"),
            validation_entropy=known.get("validation_entropy"),
            transitions_per_second=speed,
            shares=shares,
        )
        timer.reset()

    def _training_step(self, timer: StageTimer) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Make the next `update_interval` training steps, fewer at the end."""
        missions, made = self.config.experiment.missions, self.coma.training_steps
        steps = max(min(self.config.networks.update_interval, missions.n_episodes - made), 1)
        epsilon = 0.0
        if missions.use_eps:
            epsilon = epsilon_at(
                self.episodes, missions.eps_max, missions.eps_min, missions.eps_anneal_phase
            )
        with timer("rollout"):
            rounds = steps * self._rollouts_per_step
            rollout = self._collector.collect(self.coma.policy, epsilon, rounds)
        rate = learning_rate_factor(self.config, made)
        with timer("update"):
            self.coma.set_learning_rates(rate)
            learned = self.coma.update(rollout, epsilon, self.task.generator, steps)
        ranks = self.ranks.count
        self.episodes += rollout.rewards.shape[1] * ranks
        timer.count("transitions", rollout.transitions * ranks)
        flown, counts = flown_metrics(
            rollout, self.config.experiment.reward, self.task.sizes.num_actions
        )
        known = {"epsilon": epsilon, "learning_rate_factor": rate, "episodes": self.episodes}
        return (
            {**learned, **means_over_ranks(flown), **known},
            {name: ranks * mean_over_ranks(count.double()) for name, count in counts.items()},
        )

    def _is_due(self, interval: int, before: int) -> bool:
        step = self.coma.training_steps
        last = step == self.config.experiment.missions.n_episodes
        return interval > 0 and (passes(interval, before, step) or last)

    def _validate(self) -> tuple[dict[str, float], bool]:
        """Fly the validation missions greedily; return what they measure and if it is the best."""
        means: list[float] = []
        if self.ranks.leads:
            flown = validate(self._validation, self._planner)
            names = ("roi_entropy", "f1", "return")
            means = torch.stack([flown[name].mean() for name in names]).tolist()
        names = ("validation_entropy", "validation_f1", "validation_return")
        found = dict(zip(names, self.ranks.from_leader(means), strict=True))
        better = found["validation_entropy"] < self.best_entropy
        self._evaluations_without_better += 1
        if better:
            self._evaluations_without_better = 0
            self.best_entropy = found["validation_entropy"]
            self._best = {**found, "training_step": self.coma.training_steps}
        return found, better

    # Saving -------------------------------------------------------------------------------

    def state_dict(self, logger: TrainingLogger, timer: StageTimer) -> dict[str, Any]:
        """Return everything that decides how the training goes on; see `save_checkpoint`.

        The other ranks call `_streams` meanwhile.
        """
        own, *others = self._streams()
        return {
            **self.coma.state_dict(),
            "config": config_to_dict(self.config),
            "episodes": self.episodes,
            "best_entropy": self.best_entropy,
            "best": dict(self._best),
            "evaluations_without_better": self._evaluations_without_better,
            "last": dict(self._last),
            "logger": logger.state_dict(),
            "device": self.device.type,
            "generators": own,
            "other_generators": others,
            "ranks": self.ranks.count,
            "seconds": self._seconds_before + timer.wall(total=True),
        }

    def _streams(self) -> list[dict[str, Any]]:
        """Return the random streams of all ranks, and of those that an earlier start had."""
        mine = stream_state(self.task.generator, self.device)
        return self.ranks.to_all(mine) + self._absent_streams

    def load_state_dict(
        self, state: Mapping[str, Any], report: Callable[[str], None] = print
    ) -> None:
        """Go on from a checkpoint.

        Args:
            state: from `load_checkpoint`, on the CPU.
            report: shows a line where the run cannot be repeated exactly.

        Raises:
            ConfigError: it does not fit the configuration, or lacks something.
        """
        for name in ("actor", "critic", "target_critic"):
            check_fit(name, getattr(self.coma, name).state_dict(), state.get(name))
        try:
            self.coma.load_state_dict(state)
            self.episodes = int(state["episodes"])
            self.best_entropy = float(state["best_entropy"])
            self._best, self._last = dict(state["best"]), dict(state["last"])
            self._evaluations_without_better = int(state["evaluations_without_better"])
            self._seconds_before = float(state["seconds"])
            self._waiting = state["logger"]
            self._load_generators(state, report)
        except KeyError as error:
            raise ConfigError(
                f"checkpoint: it lacks the key {error}; it is of another version"
            ) from error
        self._resumed = True

    def _load_generators(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        tell_of_other_streams(state, self.device, self.ranks, report)
        generator = self.task.generator
        if state["device"] != self.device.type:
            seed = self.config.environment.seed
            renew_stream(generator, seed, self.episodes, self.ranks.rank)
            return
        streams = [state["generators"], *state.get("other_generators", [])]
        restore_streams(streams, generator, self.device, self.ranks)
        self._absent_streams = streams[self.ranks.count :]

    def _save(
        self, keeper: CheckpointKeeper, run: RunFolder, logger: TrainingLogger, timer: StageTimer
    ) -> int | None:
        """Write the newest checkpoint; return its training step, None if that failed."""
        step = self.coma.training_steps
        if not keeper.save(step, self.state_dict(logger, timer)):
            return None
        known = {"training_step": step, "episodes": self.episodes}
        run.write_status("training", **known, last=self._last, best=self._best)
        return step

    def _draw_mission(
        self, run: RunFolder, logger: TrainingLogger, report: Callable[[str], None]
    ) -> None:
        environment = MissionEnvironment(self.config, 1, self.device, "validation")
        record = evaluate(environment, self._planner, 1, self.config.environment.seed, "validation")
        path = run.figures / "mission.png"
        try:
            mission_figure(record, 0, path)
            logger.figure(self.coma.training_steps, "mission", path)
        except OSError as error:
            report(f"warning: {path} could not be drawn: {error.strerror or error}")
