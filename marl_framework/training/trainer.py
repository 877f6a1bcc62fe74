"""The training loop: collect, update, log, validate, save."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.coma.policy import epsilon_at
from marl_framework.coma.rollout import Rollout, RolloutCollector, concatenate
from marl_framework.coma_wrapper import COMAWrapper
from marl_framework.config import Config
from marl_framework.config_io import config_to_dict
from marl_framework.device import describe_device, synchronize
from marl_framework.evaluation.figures import mission_figure
from marl_framework.evaluation.flight import evaluate, validate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import LearnedPlanner
from marl_framework.training.checkpoint import save_checkpoint
from marl_framework.training.logger import TrainingLogger
from marl_framework.training.monitor import StageTimer, profile_steps
from marl_framework.training.progress import ProgressView
from marl_framework.training.run_folder import RunFolder
from marl_framework.training.task import MissionTask


class Trainer:
    """Trains the team that a configuration describes.

    Everything random follows from `environment.seed`: networks, missions and actions. Validation
    flies missions of its own and touches none of it.

    Args:
        config: the mission, the networks and the schedule.
        device: where everything lives.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        missions = config.experiment.missions
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
        self._evaluations_without_better = 0
        self._collector = RolloutCollector(self.task, len(self.task.metric_names))
        self._validation = MissionEnvironment(
            config, config.evaluation.missions, device, "validation"
        )
        self._planner = LearnedPlanner(self.coma, self.task.builder, self.task.environment.lattice)
        wanted = config.networks.batch_size * config.networks.batch_number
        a_rollout = config.environment.num_envs * missions.n_agents * config.episode_length
        self._rollouts_per_step = -(-wanted // a_rollout)

    def train(self, run: RunFolder, profile: int = 0) -> dict[str, Any]:
        """Train until `n_episodes` training steps are made or patience ends.

        Args:
            run: where logs, checkpoints and figures go.
            profile: training steps to record with torch.profiler, 0 = none.

        Returns:
            What `summary.json` holds: `results`, `timing`, `machine`.
        """
        missions, log = self.config.experiment.missions, self.config.logging
        timer = StageTimer(self.device)
        bins = {"altitudes": self.config.altitudes}
        last: dict[str, float] = {}
        with (
            TrainingLogger(
                run.tensorboard, log.scalar_interval, log.histogram_interval, bins
            ) as logger,
            ProgressView(missions.n_episodes) as progress,
            profile_steps(profile, run.path) as profiled,
        ):
            for step in range(1, missions.n_episodes + 1):
                metrics, counts = self._training_step(timer)
                written = logger.log(step, metrics, counts)
                found: dict[str, float] = {}
                if self._is_due(self.config.evaluation.interval, step):
                    with timer("validation"):
                        found = self._validate(run)
                    logger.write(step, found)
                last = written or last
                if written or found:
                    self._report(step, {**last, **found}, timer, logger, progress)
                else:
                    progress.update(step)
                if self._is_due(log.checkpoint_interval, step):
                    with timer("checkpoint"):
                        self.save(run.checkpoints / "last.pt")
                profiled()
                if self.interrupted:
                    break
                if missions.patience and self._evaluations_without_better >= missions.patience:
                    progress.print(
                        f"stopped after {step} training steps: {missions.patience} evaluations "
                        "without a better validation entropy"
                    )
                    break
            last = logger.flush() or last
            self.save(run.checkpoints / "last.pt")
            if not self._best:
                self.save(run.checkpoints / "best.pt")
            logger.figure(self.coma.training_steps, "mission", self._draw_mission(run.figures))
        return self._summary(last, timer)

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
    ) -> None:
        """Show how fast the last interval was and where its time went."""
        speed, shares = timer.rates()["transitions"], timer.shares()
        logger.write(step, {f"share_{name}": share for name, share in shares.items()})
        logger.write(step, {"transitions_per_second": speed})
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
        with timer("update"):
            learned = self.coma.update(rollout, epsilon, self.task.generator)
        self.episodes += rollout.rewards.shape[1]
        timer.count("transitions", rollout.transitions)
        metrics, counts = self._flown(rollout)
        return {**learned, **metrics, "epsilon": epsilon, "episodes": self.episodes}, counts

    def _flown(self, rollout: Rollout) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return scalars and histogram counts of a rollout, on the device."""
        reward = self.config.experiment.reward
        absolute, relative = rollout.metrics[..., 0], rollout.metrics[..., 1]
        metrics = {
            "return": rollout.rewards.sum(0).mean(),
            "absolute_return": (reward.absolute_scale * absolute + reward.absolute_offset)
            .sum(0)
            .mean(),
            "relative_return": relative.sum(0).mean(),
            "reward": rollout.rewards.mean(),
            "reward_std": rollout.rewards.std(),
        }
        actions = torch.arange(self.task.sizes.num_actions, device=self.device)
        counts = {
            "actions": (rollout.actions.unsqueeze(-1) == actions).sum((0, 1, 2)),
            "altitudes": rollout.metrics[..., 2:].sum((0, 1)),
        }
        return metrics, counts

    def _is_due(self, interval: int, step: int) -> bool:
        last = step == self.config.experiment.missions.n_episodes
        return interval > 0 and (step % interval == 0 or last)

    def _validate(self, run: RunFolder) -> dict[str, float]:
        """Fly the validation missions greedily; keep the weights where they are the best."""
        flown = validate(self._validation, self._planner)
        names = ("roi_entropy", "f1", "return")
        means = torch.stack([flown[name].mean() for name in names]).tolist()
        found = dict(
            zip(("validation_entropy", "validation_f1", "validation_return"), means, strict=True)
        )
        self._evaluations_without_better += 1
        if found["validation_entropy"] < self.best_entropy:
            self._evaluations_without_better = 0
            self.best_entropy = found["validation_entropy"]
            self._best = {**found, "training_step": self.coma.training_steps}
            self.save(run.checkpoints / "best.pt")
        return found

    def save(self, path: Path) -> None:
        """Write a checkpoint: networks, optimisers, counters and the generator's state."""
        save_checkpoint(
            path,
            {
                **self.coma.state_dict(),
                "config": config_to_dict(self.config),
                "episodes": self.episodes,
                "best_entropy": self.best_entropy,
                "generator": self.task.generator.get_state(),
            },
        )

    def _draw_mission(self, folder: Path) -> Path:
        environment = MissionEnvironment(self.config, 1, self.device, "validation")
        record = evaluate(environment, self._planner, 1, self.config.environment.seed, "validation")
        path = folder / "mission.png"
        mission_figure(record, 0, path)
        return path

    def _summary(self, last: dict[str, float], timer: StageTimer) -> dict[str, Any]:
        synchronize(self.device)
        transitions = self.episodes * self.task.n_agents * self.task.episode_length
        seconds = timer.wall(total=True)
        names = ("return", "absolute_return", "critic_loss", "actor_loss", "policy_entropy")
        return {
            "results": {
                "training_steps": self.coma.training_steps,
                "episodes": self.episodes,
                "transitions": transitions,
                "last": {name: last[name] for name in names if name in last},
                "best": self._best,
                "weights_sha256": _checksum(self.coma),
            },
            "timing": {
                "seconds": seconds,
                "transitions_per_second": transitions / seconds,
                "stage_shares": timer.shares(total=True),
            },
            "machine": {
                "device": describe_device(self.device),
                "precision": str(self.coma.precision).removeprefix("torch."),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
            },
        }


def _checksum(coma: COMAWrapper) -> str:
    """Return a fingerprint of all weights: equal runs have equal ones."""
    digest = hashlib.sha256()
    for network in (coma.actor, coma.critic, coma.target_critic):
        for tensor in network.state_dict().values():
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
