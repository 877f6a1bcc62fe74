"""The training loop: collect, update, log, validate, save."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.graphs import make_graphs
from marl_framework.algorithms.policy import epsilon_at
from marl_framework.algorithms.ranks import mean_over_ranks
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.algorithms.rollout import RolloutCollector
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import evaluate, validate, warn_without_interest
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.files import files_read
from marl_framework.observations.predictor import predictor_weights
from marl_framework.observations.task import MissionTask
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.checkpoint import check_weights
from marl_framework.runs.folder import INITIAL_WEIGHTS, RunFolder
from marl_framework.stage_timer import StageTimer
from marl_framework.training.initial import follow_teacher, take_weights
from marl_framework.training.not_finite import tell_or_stop
from marl_framework.training.outputs import Outputs
from marl_framework.training.ranks import Ranks
from marl_framework.training.resume import check_fit, complete_checkpoint
from marl_framework.training.schedule import passes
from marl_framework.training.streams import (
    renew_stream,
    restore_stream,
    stream_state,
    tell_of_other_streams,
)
from marl_framework.training.summary import describe_machine, flown_metrics, results, timing
from marl_framework.training.writers import check_writers


class Trainer:
    """Trains the team that a configuration describes.

    Everything random follows from `environment.seed`: networks, missions and actions. Validation
    flies missions of its own and touches none of it. On several ranks each has a trainer, and all
    call `train`.

    Args:
        config: the mission, the networks and the schedule.
        device: where everything lives.
        ranks: the place of this process among those that train together.
        made: training steps of the checkpoint that is loaded then.

    Attributes:
        mark: key that only its checkpoints hold.
        task: the missions to learn from.
        algorithm: acts and learns.
        collector: flies the task with the algorithm's policy.
        episodes: missions flown for training so far, by all ranks.
        interrupted: whether the training is to end after the current step.
    """

    mark = "episodes"

    def __init__(
        self, config: Config, device: torch.device, ranks: Ranks | None = None, made: int = 0
    ) -> None:
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
            graphs = make_graphs(config.compute, device)
            self.algorithm = make_algorithm(config, device, self.task.symmetries, graphs)
            self._weights_read = follow_teacher(self.algorithm, config, device, made)
        if config.observation.sees_prediction:
            self._weights_read |= predictor_weights(config.networks.predictor, "networks.predictor")
        self._weights_read |= files_read(config)
        self.collector = RolloutCollector(
            self.task, len(self.task.metric_names), graphs, self.algorithm.precision
        )
        self.episodes = 0
        self.interrupted = False
        self._best: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._waiting: Mapping[str, Any] = {}
        self._resumed = False
        self._skipped = torch.zeros((), device=device)
        self._absent_streams: list[dict[str, Any]] = []
        self._seconds_before = 0.0
        self._started: dict[str, Any] = {}
        self._evaluations_without_better = 0
        if self.ranks.leads:
            self._validation = MissionEnvironment(
                config, config.evaluation.missions, device, "validation"
            )
        lattice = self.task.environment.lattice
        self._planner = LearnedPlanner(self.algorithm.act, self.task.builder, lattice)

    def train(self, run: RunFolder | None, profile: int = 0) -> dict[str, Any]:
        """Train until `learning.training_steps` are made or patience ends.

        After `load_state_dict` it goes on from there.

        Args:
            run: where logs, checkpoints and figures go; None on ranks that do not lead.
            profile: training steps to record with torch.profiler, 0 = none.

        Returns:
            What `summary.json` holds: `results`, `timing`, `machine`.

        Raises:
            NumericalError: more updates than `max_skipped_updates` were not finite.
        """
        timer = StageTimer(self.device)
        first = self.algorithm.training_steps
        with Outputs(self.config, self.device, run, first, profile) as out:
            if self._waiting:
                out.logger.load_state_dict(self._waiting, self.device)
            saved = first if self._resumed else None
            if not self._best and not self.is_over():
                out.last_is_best_no_more()
            while self._goes_on():
                before = self.algorithm.training_steps
                metrics, counts = self.training_step(timer)
                step = self.algorithm.training_steps
                written = out.logger.log(step, metrics, counts)
                found, better = self.validate_when_due(before, timer)
                out.logger.write(step, found)
                self._last = written or self._last
                self._check_numbers(written, out, run)
                out.report(step, {**self._last, **found}, bool(written or found), timer)
                # Beside best.pt a newest one, so that what goes on after a crash knows it.
                if better or self.ranks.any(out.is_checkpoint_due(step, before)):
                    saved = self._save(out, timer, better) or saved
                if passes(self.config.logging.figure_interval, before, step):
                    with timer("figure"):
                        self._draw_mission(out)
                out.end_step()
            self._finish(out, run, timer, saved)
        return {
            "results": {
                **results(self, self._last, self._best, finished=self.is_over()),
                **self._started,
            },
            "timing": timing(self, timer, self._seconds_before),
            "machine": describe_machine(self, out.hardware),
        }

    def _finish(
        self, out: Outputs, run: RunFolder | None, timer: StageTimer, saved: int | None
    ) -> None:
        """Save what is not saved yet and write what waits."""
        step, patience = self.algorithm.training_steps, self.config.learning.patience
        if self.ranks.any(saved != step):
            saved = self._save(out, timer) or saved
        if saved != step:
            raise OSError(f"the state after training step {step} could not be saved")
        if self._evaluations_without_better >= (patience or math.inf):
            out.say(
                f"stopped after {step} training steps: {patience} validations without a better one"
            )
        if not self.is_over():
            out.logger.forget()  # the checkpoint has it
        written = out.logger.flush()
        self._last = written or self._last
        self._check_numbers(written, out, run)
        if not self._best and self.is_over():
            out.last_is_best()
        self._draw_mission(out)

    def _goes_on(self) -> bool:
        """Whether another training step is to be made; the same on all ranks."""
        return not self.is_over() and not self.ranks.any(self.interrupted)

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        learning = self.config.learning
        patient = self._evaluations_without_better < (learning.patience or math.inf)
        return self.algorithm.training_steps >= learning.training_steps or not patient

    def interrupt(self) -> None:
        """Ask `train` to end after the current training step; usable in signal handlers."""
        self.interrupted = True

    def training_step(self, timer: StageTimer) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Make the next `learning.update_interval` training steps, fewer at the end.

        Returns:
            Scalars and histogram counts to log, on the device.
        """
        learning, made = self.config.learning, self.algorithm.training_steps
        steps = max(min(learning.update_interval, learning.training_steps - made), 1)
        epsilon = 0.0
        if learning.use_eps:
            epsilon = epsilon_at(
                self.episodes, learning.eps_max, learning.eps_min, learning.eps_anneal_phase
            )
        with timer("rollout"):
            rounds = steps * self.config.schedule.rollouts_per_step
            rollout = self.collector.collect(self.algorithm.act, epsilon, rounds)
        rate = self.config.schedule.learning_rate_factor(made)
        with timer("update"):
            learned = self.algorithm.update(rollout, epsilon, self.task.generator, steps, rate)
        self._check_update(learned, made + steps)
        self._skipped += learned.get("skipped_updates", 0)
        missions = rollout.rewards.shape[1] * self.ranks.count
        self.episodes += missions
        timer.count("transitions", round(missions * self.config.schedule.transitions_per_mission))
        flown, counts = flown_metrics(
            rollout, self.config.experiment.reward, self.task.sizes.num_actions
        )
        known = {"epsilon": epsilon, "learning_rate_factor": rate, "episodes": self.episodes}
        return (
            {**learned, **flown, **known},
            {
                name: self.ranks.count * mean_over_ranks(count.double())
                for name, count in counts.items()
            },
        )

    def validate_when_due(self, before: int, timer: StageTimer) -> tuple[dict[str, float], bool]:
        """Validate after the training steps from `before` on, if one of them asks for it.

        All ranks call it together.

        Args:
            before: training steps made when the latest ones began.
            timer: notes the time as `validation`.

        Returns:
            Means over the validation missions, none where no validation is due; whether they are
            the best so far.
        """
        step, interval = self.algorithm.training_steps, self.config.evaluation.interval
        last = step == self.config.learning.training_steps
        if not interval or not (passes(interval, before, step) or last):
            return {}, False
        with timer("validation"):
            return self._validate()

    def _check_update(self, learned: object, steps: int) -> None:
        """Check what the update of an algorithm has returned and done; one's own may do otherwise.

        Raises:
            ConfigError: it returns no scalars by name, or has not added its training steps.
        """
        name = f"experiment.algorithm: {self.config.experiment.algorithm}.update"
        scalars = isinstance(learned, Mapping) and all(
            value.ndim == 0 if isinstance(value, Tensor) else isinstance(value, int | float)
            for value in learned.values()
        )
        if not scalars:
            raise ConfigError(f"{name} must return a dict of scalars")
        found = self.algorithm.training_steps
        if found != steps:
            raise ConfigError(f"{name} must make training_steps {steps} now, not {found}")

    def _validate(self) -> tuple[dict[str, float], bool]:
        """Fly the validation missions greedily; return what they measure and if it is the best."""
        means: list[float] = []
        if self.ranks.leads:
            flown = self.fly_validation()
            if not self._best:
                warn_without_interest(flown["roi_entropy"])
            names = ("roi_entropy", "f1", "return")
            means = torch.stack([flown[name].mean() for name in names]).tolist()
        names = ("validation_entropy", "validation_f1", "validation_return")
        found = dict(zip(names, self.ranks.broadcast(means), strict=True))
        better = self._score(found) > self._score(self._best)
        self._evaluations_without_better += 1
        if better:
            self._evaluations_without_better = 0
            self._best = {**found, "training_step": self.algorithm.training_steps}
        return found, better

    def _score(self, found: Mapping[str, float]) -> float:
        """Return what a validation counts for, the more the better; none counts least."""
        by = self.config.evaluation.best_by
        value = found.get(f"validation_{by}")
        if value is None:
            return -math.inf
        return -value if by == "entropy" else value

    def fly_validation(self) -> dict[str, Tensor]:
        """Fly the validation missions greedily; on the rank that leads.

        Returns:
            What each mission measures, [missions] on the device (see `evaluation.flight.validate`).
        """
        return validate(self._validation, self._planner)

    def start_from(self, checkpoint: Checkpoint) -> tuple[dict[str, Any], str]:
        """Take the weights of a trained team before the first step; see `take_weights`."""
        record, line = take_weights(self.algorithm, self.config, checkpoint)
        self._started = {INITIAL_WEIGHTS: record}
        return record, line

    # Saving -------------------------------------------------------------------------------

    def state_dict(self, logger: Mapping[str, Any], timer: StageTimer) -> dict[str, Any]:
        """Return everything that decides how the training goes on; all ranks call it together.

        Args:
            logger: state of the logger.
            timer: of this process.
        """
        own, *others = self._streams()
        return {
            **self.algorithm.state_dict(),
            "config": config_to_dict(self.config),
            "episodes": self.episodes,
            "best": dict(self._best),
            "evaluations_without_better": self._evaluations_without_better,
            "last": dict(self._last),
            "logger": dict(logger),
            "skipped_updates": self._skipped,
            "device": self.device.type,
            "generators": own,
            "other_generators": others,
            "ranks": self.ranks.count,
            "seconds": self._seconds_before + timer.wall(total=True),
            "weights_read": self._weights_read,
            **self._started,
        }

    def _streams(self) -> list[dict[str, Any]]:
        """Return the random streams of all ranks, and of those that an earlier start had."""
        mine = stream_state(self.task.generator, self.device)
        return self.ranks.gather(mine) + self._absent_streams

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
        for name, module in self.algorithm.modules.items():
            check_fit(name, module.state_dict(), state.get(name))
        check_weights(self._weights_read, state.get("weights_read", {}))
        with complete_checkpoint():
            self.algorithm.load_state_dict(state)
            self._skipped.copy_(state["skipped_updates"])
            self.episodes = int(state["episodes"])
            self._best, self._last = dict(state["best"]), dict(state["last"])
            self._evaluations_without_better = int(state["evaluations_without_better"])
            self._seconds_before = float(state["seconds"])
            self._waiting = state["logger"]
            self._started = {key: state[key] for key in (INITIAL_WEIGHTS,) if key in state}
            self._load_generators(state, report)
        self._resumed = True

    def _load_generators(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        tell_of_other_streams(state, self.device, self.ranks, report)
        generator = self.task.generator
        if state["device"] != self.device.type:
            seed = self.config.environment.seed
            renew_stream(generator, seed, self.episodes, self.ranks.rank)
            return
        streams = [state["generators"], *state.get("other_generators", [])]
        if self.ranks.rank < len(streams):  # else it keeps its fresh one
            restore_stream(streams[self.ranks.rank], generator, self.device)
        self._absent_streams = streams[self.ranks.count :]

    def _save(self, out: Outputs, timer: StageTimer, best: bool = False) -> int | None:
        """Write the newest checkpoint, before it the best if it is that, too.

        Returns:
            Its training step; None if the newest one failed.
        """
        step = self.algorithm.training_steps
        with timer("checkpoint"):
            state = self.state_dict(out.logger.state_dict(), timer)
            if best:
                out.save_best(state)
            known = {"episodes": self.episodes, "last": self._last, "best": self._best}
            return step if out.save(step, state, **known) else None

    def _draw_mission(self, out: Outputs) -> None:
        if out.leads:
            environment = MissionEnvironment(self.config, 1, self.device, "validation")
            seed = self.config.environment.seed
            record = evaluate(environment, self._planner, 1, seed, "validation")
            out.draw(self.algorithm.training_steps, record)

    def _check_numbers(
        self, written: Mapping[str, float], out: Outputs, run: RunFolder | None
    ) -> None:
        """Stop if too many updates were not finite; called when metrics have been read anyway."""
        if not written.get("skipped_updates"):
            return
        advice = (
            "lower learning.actor.learning_rate, learning.critic.learning_rate or gradient_norm, "
            "or use compute.precision=float32"
        )
        own = self.config.experiment.reward.function
        if own is not None and not math.isfinite(written["return"]):
            advice = f"experiment.reward.function: {own} returned what is not finite"
        tell_or_stop(
            int(self._skipped),
            self.config.learning.max_skipped_updates,
            f"training step {self.algorithm.training_steps}",
            advice,
            lambda: {**self.algorithm.state_dict(), "metrics": dict(written)},
            run,
            out.say,
        )
