"""The training loop: collect, update, log, validate, save."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from marl_framework.coma.policy import epsilon_at
from marl_framework.coma.rollout import RolloutCollector, concatenate
from marl_framework.coma_wrapper import COMAWrapper
from marl_framework.config import Config
from marl_framework.config_io import ConfigError, config_to_dict
from marl_framework.device import describe_device, synchronize
from marl_framework.evaluation.figures import mission_figure
from marl_framework.evaluation.flight import evaluate, validate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import LearnedPlanner
from marl_framework.training.checkpoint import save_checkpoint
from marl_framework.training.files import link_file
from marl_framework.training.hardware import HardwareMonitor
from marl_framework.training.keeper import BEST, LAST, CheckpointKeeper
from marl_framework.training.logger import TrainingLogger
from marl_framework.training.monitor import StageTimer, profile_steps
from marl_framework.training.outcome import flown_metrics, weights_checksum
from marl_framework.training.progress import ProgressView
from marl_framework.training.resume import check_fit
from marl_framework.training.run_folder import RunFolder
from marl_framework.training.schedule import learning_rate_factor
from marl_framework.training.task import MissionTask


class NumericalError(ArithmeticError):
    """The training stopped because too many updates were not finite."""


class Trainer:
    """Trains the team that a configuration describes.

    Everything random follows from `environment.seed`: networks, missions and actions. Validation
    flies missions of its own and touches none of it.

    Args:
        config: the mission, the networks and the schedule.
        device: where everything lives.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.task = MissionTask(
            MissionEnvironment(config, config.environment.num_envs, device, "training")
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.environment.seed)
            self.coma = COMAWrapper(config.networks, self.task.sizes, device)
        self.episodes = 0
        self.interrupted = False
        self.best_entropy = math.inf
        self._best: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._waiting: Mapping[str, Any] = {}
        self._resumed = False
        self._seconds_before = 0.0
        self._evaluations_without_better = 0
        self._collector = RolloutCollector(self.task, len(self.task.metric_names))
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
        timer = StageTimer(self.device)
        bins = {"altitudes": self.config.altitudes}
        first = self.coma.training_steps
        with (
            ProgressView(missions.n_episodes, first) as progress,
            TrainingLogger(
                run.tensorboard,
                log.scalar_interval,
                log.histogram_interval,
                bins,
                first if any(run.tensorboard.iterdir()) else None,
                report or progress.print,
            ) as logger,
            profile_steps(profile, run.path) as profiled,
            HardwareMonitor(self.device, run.path) as hardware,
        ):
            if self._waiting:
                logger.load_state_dict(self._waiting, self.device)
            keeper = CheckpointKeeper(run.checkpoints, log, report or progress.print)
            saved = first if self._resumed else None
            while not self._is_over() and not self.interrupted:
                metrics, counts = self._training_step(timer)
                step = self.coma.training_steps
                written = logger.log(step, metrics, counts)
                found: dict[str, float] = {}
                better = False
                if self._is_due(self.config.evaluation.interval, step):
                    with timer("validation"):
                        found, better = self._validate()
                    logger.write(step, found)
                self._last = written or self._last
                self._check_numbers(written, run, progress.print)
                if written or found:
                    self._report(step, {**self._last, **found}, timer, logger, progress, hardware)
                else:
                    progress.update(step)
                if better:
                    with timer("checkpoint"):
                        keeper.save_best(self.state_dict(logger, timer))
                if keeper.is_due(step):
                    with timer("checkpoint"):
                        saved = self._save(keeper, run, logger, timer) or saved
                if log.figure_interval and step % log.figure_interval == 0:
                    with timer("figure"):
                        self._draw_mission(run, logger, progress.print)
                profiled()
            if saved != self.coma.training_steps:
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
            if not self._is_over():
                logger.forget()  # the checkpoint has it
            written = logger.flush()
            self._last = written or self._last
            self._check_numbers(written, run, progress.print)
            if not self._best:
                link_file(run.checkpoints / LAST, run.checkpoints / BEST)
            self._draw_mission(run, logger, progress.print)
        return self._summary(timer, hardware)

    def _is_over(self) -> bool:
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
        missions = self.config.experiment.missions
        epsilon = 0.0
        if missions.use_eps:
            epsilon = epsilon_at(
                self.episodes, missions.eps_max, missions.eps_min, missions.eps_anneal_phase
            )
        with timer("rollout"):
            rollout = concatenate(
                [
                    self._collector.collect(self.coma.policy, epsilon)
                    for _ in range(self._rollouts_per_step)
                ]
            )
        rate = learning_rate_factor(self.config, self.coma.training_steps)
        with timer("update"):
            self.coma.set_learning_rates(rate)
            learned = self.coma.update(rollout, epsilon, self.task.generator)
        self.episodes += rollout.rewards.shape[1]
        timer.count("transitions", rollout.transitions)
        metrics, counts = flown_metrics(
            rollout, self.config.experiment.reward, self.task.sizes.num_actions
        )
        known = {"epsilon": epsilon, "learning_rate_factor": rate, "episodes": self.episodes}
        return {**learned, **metrics, **known}, counts

    def _is_due(self, interval: int, step: int) -> bool:
        last = step == self.config.experiment.missions.n_episodes
        return interval > 0 and (step % interval == 0 or last)

    def _validate(self) -> tuple[dict[str, float], bool]:
        """Fly the validation missions greedily; return what they measure and if it is the best."""
        flown = validate(self._validation, self._planner)
        names = ("roi_entropy", "f1", "return")
        means = torch.stack([flown[name].mean() for name in names]).tolist()
        found = dict(
            zip(("validation_entropy", "validation_f1", "validation_return"), means, strict=True)
        )
        better = found["validation_entropy"] < self.best_entropy
        self._evaluations_without_better += 1
        if better:
            self._evaluations_without_better = 0
            self.best_entropy = found["validation_entropy"]
            self._best = {**found, "training_step": self.coma.training_steps}
        return found, better

    # Saving -------------------------------------------------------------------------------

    def state_dict(self, logger: TrainingLogger, timer: StageTimer) -> dict[str, Any]:
        """Return everything that decides how the training goes on; see `save_checkpoint`."""
        on_gpu = self.device.type == "cuda"
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
            "generators": {
                "missions": self.task.generator.get_state(),
                "torch": torch.get_rng_state(),
                "device": torch.cuda.get_rng_state(self.device) if on_gpu else None,
            },
            "seconds": self._seconds_before + timer.wall(total=True),
        }

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
        generators = state["generators"]
        if state["device"] != self.device.type:
            report(
                f"warning: the run began on {state['device']} and goes on on {self.device.type}: "
                "random numbers start anew there"
            )
            self.task.generator.manual_seed(self.config.environment.seed + (self.episodes << 20))
            return
        self.task.generator.set_state(generators["missions"])
        torch.set_rng_state(generators["torch"])
        if generators["device"] is not None:
            torch.cuda.set_rng_state(generators["device"], self.device)

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

    def _check_numbers(
        self, written: Mapping[str, float], run: RunFolder, report: Callable[[str], None]
    ) -> None:
        """Stop where too many updates were not finite; called when metrics were read anyway."""
        if not written.get("skipped_updates"):
            return
        allowed = self.config.networks.max_skipped_updates
        skipped = self.coma.count_skipped()
        step = self.coma.training_steps
        text = f"{skipped} updates up to training step {step} had a loss or gradient that is not "
        text += "finite and were not applied"
        if skipped <= allowed:
            report(f"warning: {text}; networks.max_skipped_updates allows {allowed}")
            return
        dump = run.path / "not_finite.pt"
        try:
            save_checkpoint(dump, {**self.coma.state_dict(), "metrics": dict(written)})
        except OSError as error:
            report(f"warning: {dump} could not be written: {error.strerror or error}")
        raise NumericalError(
            f"{text}; networks.max_skipped_updates allows {allowed}; the state is in {dump}; "
            "lower networks.actor.learning_rate, networks.critic.learning_rate or gradient_norm, "
            "or use networks.precision=float32"
        )

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

    def _summary(self, timer: StageTimer, hardware: HardwareMonitor) -> dict[str, Any]:
        synchronize(self.device)
        transitions = self.episodes * self.task.n_agents * self.task.episode_length
        seconds = self._seconds_before + timer.wall(total=True)
        names = ("return", "absolute_return", "critic_loss", "actor_loss", "policy_entropy")
        return {
            "results": {
                "training_steps": self.coma.training_steps,
                "episodes": self.episodes,
                "transitions": transitions,
                "finished": self._is_over(),
                "last": {name: self._last[name] for name in names if name in self._last},
                "best": self._best,
                "weights_sha256": weights_checksum(self.coma),
            },
            "timing": {
                "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": seconds,
                "transitions_per_second": transitions / seconds,
                "stage_shares": timer.shares(total=True),
            },
            "machine": {
                "device": describe_device(self.device),
                "precision": str(self.coma.precision).removeprefix("torch."),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "hardware": hardware.summary(),
            },
        }
