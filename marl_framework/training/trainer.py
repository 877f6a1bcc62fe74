"""Training loop of a team: plan, roll out, update, log, validate, save."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.graphs import make_graphs
from marl_framework.algorithms.policy import epsilon_at
from marl_framework.algorithms.ranks import mean_over_ranks
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.algorithms.rollout import RolloutCollector
from marl_framework.config.derived import passes
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.device import describe_device, synchronize
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.files import files_read
from marl_framework.networks.layers import Way, convolutions
from marl_framework.observations.completion import make_completion
from marl_framework.observations.prediction import predictor_weights
from marl_framework.observations.task import MissionTask
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.checkpoint_store import BEST, LAST
from marl_framework.runs.files import link_file
from marl_framework.runs.folder import INITIAL_WEIGHTS, RunFolder
from marl_framework.stage_timer import StageTimer
from marl_framework.training.base import RunTrainer
from marl_framework.training.initial import follow_teacher, take_weights
from marl_framework.training.outputs import Outputs
from marl_framework.training.ranks import Ranks
from marl_framework.training.streams import (
    renew_stream,
    report_other_streams,
    restore_stream,
    stream_state,
)
from marl_framework.training.summary import describe_windows, flown_metrics, weights_checksum
from marl_framework.training.validation import Validation

_RESULTS = ("return", "absolute_return", "critic_loss", "actor_loss", "policy_entropy")


class Trainer(RunTrainer):
    """Trains the team that a configuration describes.

    `environment.seed` determines all random numbers: networks, missions and actions. Validation
    uses separate missions and consumes no random numbers of the training. Each rank has a trainer;
    all ranks call `train`.

    Args:
        config: configuration of the training.
        device: device of all tensors.
        ranks: place of this process among the ranks.
        made: number of training steps of the checkpoint to be loaded; 0 for a new run.

    Attributes:
        tasks: training missions, one entry for each area.
        task: training missions in the first area.
        algorithm: algorithm that acts and learns.
        collectors: collectors of rollouts with the algorithm's policy, one for each area.
        validation: validation missions and best result.
        episodes: number of missions flown for training so far, on all ranks.
    """

    mark = "episodes"

    def __init__(
        self, config: Config, device: torch.device, ranks: Ranks | None = None, made: int = 0
    ) -> None:
        super().__init__(config, device, ranks)
        share = config.environment.num_envs // self.ranks.count
        self.tasks = [
            MissionTask(MissionEnvironment(area, share, device, "training", rank=self.ranks.rank))
            for area in config.areas
        ]
        self.task = self.tasks[0]
        for task in self.tasks:  # one stream, and rollouts with the same fields, for all areas
            task.generator = task.environment.generator = self.task.generator
            task.has_inactive = any(other.environment.has_inactive for other in self.tasks)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.environment.seed)
            graphs = make_graphs(config, device)
            self.algorithm = make_algorithm(config, device, self.task.symmetries, graphs)
            self._weights_read = follow_teacher(self.algorithm, config, device, made)
        if config.observation.sees_prediction:
            self._weights_read |= predictor_weights(config.networks.predictor, "networks.predictor")
        self._weights_read |= files_read(config)
        self.modules = self.algorithm.modules
        metrics = len(self.task.metric_names)
        self.collectors = [
            RolloutCollector(task, metrics, graphs, self.algorithm.precision) for task in self.tasks
        ]
        self._planners = [
            LearnedPlanner(self.algorithm.act, task.builder, task.environment.lattice)
            for task in self.tasks
        ]
        self.validation = Validation(config, device, self.ranks, self._planners)
        self.episodes = 0
        self._last: dict[str, float] = {}
        self._logger_state: Mapping[str, Any] = {}
        self._resumed = False
        self._absent_streams: list[dict[str, Any]] = []
        self._initial: dict[str, Any] = {}

    @property
    def steps(self) -> int:
        """Number of training steps made so far."""
        return self.algorithm.training_steps

    def notes(self) -> list[str]:
        """Return lines about kernels (GPU) or convolutions (CPU), and those of the algorithm."""
        own: list[str] = getattr(self.algorithm, "notes", list)()
        if self.device.type == "cuda":
            return [f"window kernels: {describe_windows(self.config, self.device)}", *own]
        ways = {name: convolutions(network) for name, network in self.modules.items()}
        if all(layer.way is Way.CONVOLUTION for layers in ways.values() for layer in layers):
            return own
        lines = (f"{name} {', '.join(layer.way.value for layer in ways[name])}" for name in ways)
        return [f"convolutions: {'; '.join(lines)}", *own]

    def is_over(self) -> bool:
        """Return whether all training steps are made or `learning.patience` is exhausted."""
        done = self.steps >= self.config.learning.training_steps
        return done or not self.validation.is_patient

    def train(self, run: RunFolder | None, profile: int = 0) -> dict[str, Any]:
        """Train until `is_over` or `interrupt`; see the base class."""
        timer = StageTimer(self.device)
        with Outputs(self.config, self.device, run, self.steps, profile) as out:
            if self._logger_state:
                out.logger.load_state_dict(self._logger_state, self.device)
            saved = self.steps if self._resumed else None
            if run is not None and not self.validation.best and not self.is_over():
                (run.checkpoints / BEST).unlink(missing_ok=True)  # link to the last checkpoint
            while not self.is_over() and not self.ranks.any(self.interrupted):
                first = self.steps
                metrics, counts = self.make_steps(timer)
                written = out.logger.log(self.steps, metrics, counts)
                validated: dict[str, float] = {}
                better, earlier = False, self.validation.best
                if self.validation.is_due(first, self.steps):
                    with timer("validation"):
                        validated, better = self.validation.run(self.steps)
                    out.logger.write(self.steps, validated)
                self._last = written or self._last
                self._check_skipped_updates(written, out, run)
                known = {**self._last, **validated}
                out.report(self.steps, known, bool(written or validated), timer)
                # best.pt survives a crash, so the newest checkpoint must record the same result.
                if better or self.ranks.any(out.is_checkpoint_due(self.steps, first)):
                    replaced = earlier if better else None
                    saved = self.steps if self._save(out, timer, replaced) else saved
                if passes(self.config.logging.figure_interval, first, self.steps):
                    with timer("figure"):
                        self._draw_mission(out)
                out.end_step()
            self._finish(out, run, timer, saved)
        return self._summary(out, timer)

    def make_steps(self, timer: StageTimer) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Make the next `learning.update_interval` training steps, from the same missions.

        Returns scalars and histogram counts to log, on the device; `timer` counts transitions.
        Raises ConfigError if a custom algorithm violates the algorithm protocol.
        """
        learning, schedule, made = self.config.learning, self.config.schedule, self.steps
        steps = max(min(learning.update_interval, learning.training_steps - made), 1)
        epsilon = 0.0
        if learning.use_eps:
            bounds = learning.eps_max, learning.eps_min
            epsilon = epsilon_at(self.episodes, *bounds, learning.eps_anneal_phase)
        rate = schedule.learning_rate_factor(made)
        with timer("rollout"):
            collector = self.collectors[self.draw_area(made)]
            rounds = steps * schedule.rollouts_per_step
            rollout = collector.collect(self.algorithm.act, epsilon, rounds)
        with timer("update"):
            learned = self.algorithm.update(rollout, epsilon, self.task.generator, steps, rate)
        self._check_update(learned, made + steps)
        self.skipped += learned.get("skipped_updates", 0)
        ranks = self.ranks.count
        missions = rollout.rewards.shape[1] * ranks
        self.episodes += missions
        timer.count("transitions", round(missions * schedule.transitions_per_mission))
        reward, actions = self.config.experiment.reward, self.task.sizes.num_actions
        flown, counts = flown_metrics(rollout, reward, actions)
        totals = {name: ranks * mean_over_ranks(count.double()) for name, count in counts.items()}
        known = {"epsilon": epsilon, "learning_rate_factor": rate, "episodes": self.episodes}
        return {**learned, **flown, **known}, totals

    def draw_area(self, step: int) -> int:
        """Draw the index of the area for the rollout after `step` training steps.

        The draw depends only on `environment.seed` and `step`, so all ranks and resumed runs agree.
        """
        stream = random.Random((self.config.environment.seed << 32) + step)
        return stream.randrange(len(self.tasks))

    def _check_update(self, learned: object, steps: int) -> None:
        """Check that a custom algorithm returned scalars and advanced `training_steps`."""
        name = f"experiment.algorithm: {self.config.experiment.algorithm}.update"
        scalars = isinstance(learned, Mapping) and all(
            value.ndim == 0 if isinstance(value, Tensor) else isinstance(value, int | float)
            for value in learned.values()
        )
        if not scalars:
            raise ConfigError(f"{name} must return a dict of scalars")
        if self.steps != steps:
            raise ConfigError(f"{name} must set training_steps to {steps}, not {self.steps}")

    def _finish(
        self, out: Outputs, run: RunFolder | None, timer: StageTimer, saved: int | None
    ) -> None:
        """Save the state unless already saved, and write pending metrics."""
        step, patience = self.steps, self.config.learning.patience
        if self.ranks.any(saved != step) and not self._save(out, timer) and saved != step:
            raise OSError(f"the state after training step {step} could not be saved")
        if not self.validation.is_patient:
            out.say(
                f"stopped after {step} training steps: no improvement in {patience} validations"
            )
        if not self.is_over():
            out.logger.forget()  # the checkpoint contains the pending metrics
        written = out.logger.flush()
        self._last = written or self._last
        self._check_skipped_updates(written, out, run)
        if run is not None and not self.validation.best and self.is_over():
            link_file(run.checkpoints / LAST, run.checkpoints / BEST)
        self._draw_mission(out)

    def _summary(self, out: Outputs, timer: StageTimer) -> dict[str, Any]:
        """Return `results` (fixed by configuration and seed), `timing` and `machine`."""
        synchronize(self.device)
        seconds = self.seconds()
        transitions = round(self.episodes * self.config.schedule.transitions_per_mission)
        results = {
            "training_steps": self.steps,
            "episodes": self.episodes,
            "transitions": transitions,
            "finished": self.is_over(),
            "last": {name: self._last[name] for name in _RESULTS if name in self._last},
            "best": dict(self.validation.best),
            "weights_sha256": weights_checksum(self.modules),
            **self._initial,
        }
        timing = {
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": seconds,
            "transitions_per_second": transitions / seconds,
            "stage_shares": timer.shares(total=True),
        }
        machine = {
            "device": describe_device(self.device),
            "ranks": self.ranks.count,
            "precision": str(self.algorithm.precision).removeprefix("torch."),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "hardware": out.hardware,
        }
        return {"results": results, "timing": timing, "machine": machine}

    def _save(
        self, out: Outputs, timer: StageTimer, replaced: dict[str, float] | None = None
    ) -> bool:
        """Write the newest checkpoint, and the best if it has replaced an earlier one.

        `replaced` is the result of the earlier one, which stays the best if the write fails.
        Returns whether the newest was written.
        """
        with timer("checkpoint"):
            self._logger_state = out.logger.state_dict()
            state = self.state_dict()
            if replaced is not None and self.ranks.any(not out.save_best(state)):
                state["best"] = self.validation.best = replaced
            known = {"episodes": self.episodes, "last": self._last, "best": self.validation.best}
            return out.save(self.steps, state, **known)

    def _draw_mission(self, out: Outputs) -> None:
        def fly() -> FlightRecord:
            environment = MissionEnvironment(self.config.areas[0], 1, self.device, "validation")
            seed = self.config.environment.seed
            completion = make_completion(environment.config, environment.lattice)
            planner = self._planners[0]
            return evaluate(environment, planner, 1, seed, "validation", completion=completion)

        out.draw(self.steps, fly)

    def _check_skipped_updates(
        self, written: Mapping[str, float], out: Outputs, run: RunFolder | None
    ) -> None:
        """Stop if too many updates were not finite; checked only when metrics were written."""
        if not written.get("skipped_updates"):
            return
        advice = (
            "lower learning.actor.learning_rate, learning.critic.learning_rate or gradient_norm, "
            "or use compute.precision=float32"
        )
        custom = self.config.experiment.reward.function
        if custom is not None and not math.isfinite(written["return"]):
            advice = f"experiment.reward.function: {custom} returned a number that is not finite"
        self.check_finite(
            f"training step {self.steps}",
            advice,
            lambda: {**self.algorithm.state_dict(), "metrics": dict(written)},
            run,
            out.say,
        )

    # Starting and saving ------------------------------------------------------------------

    def start_from(self, checkpoint: Checkpoint) -> tuple[dict[str, Any], str]:
        """Load the weights of a trained team before the first step; see `take_weights`."""
        record, line = take_weights(self.algorithm, self.config, checkpoint)
        self._initial = {INITIAL_WEIGHTS: record}
        return record, line

    def own_state(self) -> dict[str, Any]:
        """Return networks, counters, pending metrics and random streams of all ranks."""
        mine = stream_state(self.task.generator, self.device)
        first, *others = self.ranks.gather(mine) + self._absent_streams
        return {
            **self.algorithm.state_dict(),
            "episodes": self.episodes,
            "best": dict(self.validation.best),
            "evaluations_without_better": self.validation.since_best,
            "last": dict(self._last),
            "logger": dict(self._logger_state),
            "generators": first,
            "other_generators": others,
            "ranks": self.ranks.count,
            **self._initial,
        }

    def load_own_state(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Load what `own_state` returned."""
        self.algorithm.load_state_dict(state)
        self.episodes = int(state["episodes"])
        self.validation.best = dict(state["best"])
        self.validation.since_best = int(state["evaluations_without_better"])
        self._last, self._logger_state = dict(state["last"]), state["logger"]
        self._initial = {key: state[key] for key in (INITIAL_WEIGHTS,) if key in state}
        self._resumed = state["config"] == config_to_dict(self.config)  # else save it again
        report_other_streams(state, self.device, self.ranks, report)
        generator, rank = self.task.generator, self.ranks.rank
        if state["device"] != self.device.type:
            renew_stream(generator, self.config.environment.seed, self.episodes, rank)
            return
        streams = [state["generators"], *state.get("other_generators", [])]
        if rank < len(streams):  # additional ranks keep their fresh stream
            restore_stream(streams[rank], generator, self.device)
        self._absent_streams = streams[self.ranks.count :]
