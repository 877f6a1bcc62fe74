"""BenchMARL: missions as the task `marl_framework/mapping`.

Requires the extra `benchmarl`. Importing this module registers the task with BenchMARL. To run
BenchMARL's command line with the task:

    python -m marl_framework.integrations.benchmarl algorithm=mappo \
        task=marl_framework/mapping model=layers/cnn model@critic_model=layers/cnn
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from marl_framework.command_line import BAD_INPUT, warn
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.integrations import missing_extra
from marl_framework.integrations.missions import GROUP

try:
    from benchmarl.environments import Task, TaskClass, task_config_registry, tasks
    from torchrl.data import Composite
    from torchrl.envs import EnvBase, PermuteTransform, Transform
except ModuleNotFoundError as error:
    raise missing_extra("benchmarl", error) from error

from marl_framework.integrations.torchrl import MissionEnv

__all__ = ["MissionClass", "MissionTask"]

_CONF = Path(__file__).with_name("conf")


class MissionClass(TaskClass):
    """Missions of a params file as :class:`~marl_framework.integrations.torchrl.MissionEnv`.

    Maps have their channels last, as BenchMARL's CNN expects: observations [E, N, X, Y, C] and
    state [E, X, Y, C_s]. An experiment trains on the missions of `split` and evaluates on the
    missions of `evaluation_split`; both use the experiment's seed.

    `conf/task/marl_framework/mapping.yaml` describes the keys of the task.
    """

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Return a function that creates the environment.

        Raises ConfigError if the configuration is invalid, or some UAVs may be inactive.
        """
        config = self._load()
        if config.missions.has_inactive:
            keys = config.missions.keys_that_end_missions or ("experiment.missions.n_agents",)
            raise ConfigError(
                f"{' and '.join(keys)}: BenchMARL requires that all UAVs fly to the end; choose "
                "one n_agents, one budget, cost.limit null and crash_rate 0"
            )
        split = self.config["split"]
        return lambda: MissionEnv(config, num_envs, device, split, seed, with_state=True)

    def get_env_transforms(self, env: EnvBase) -> list[Transform]:
        """Return the transform that moves the channels of all maps to the last axis."""
        return [PermuteTransform((-2, -1, -3), in_keys=[(GROUP, "observation"), "state"])]

    def supports_continuous_actions(self) -> bool:
        """Return False: actions are moves on a lattice."""
        return False

    def supports_discrete_actions(self) -> bool:
        """Return True."""
        return True

    def has_render(self, env: EnvBase) -> bool:
        """Return False, and switch `env` to the missions of `evaluation_split`.

        An experiment calls this only for its evaluation environment, before each evaluation.
        """
        env.missions.move_to(self.config["evaluation_split"])
        return False

    def max_steps(self, env: EnvBase) -> int:
        """Return the number of moves per mission, T."""
        return self._load().missions.episode_length

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        """Return the only agent group, `uavs`."""
        return dict(env.group_map)

    def observation_spec(self, env: EnvBase) -> Composite:
        """Return the spec of ("uavs", "observation")."""
        return _select_spec(env, (GROUP, "observation"))

    def state_spec(self, env: EnvBase) -> Composite:
        """Return the spec of "state"."""
        return _select_spec(env, "state")

    def action_mask_spec(self, env: EnvBase) -> Composite:
        """Return the spec of ("uavs", "action_mask")."""
        return _select_spec(env, (GROUP, "action_mask"))

    def action_spec(self, env: EnvBase) -> Composite:
        """Return the spec of ("uavs", "action")."""
        return env.full_action_spec_unbatched

    def info_spec(self, env: EnvBase) -> None:
        """Return None."""

    @staticmethod
    def env_name() -> str:
        """Return the first part of the task's name."""
        return "marl_framework"

    def _load(self) -> Config:
        return load_config(self.config["params"], self.config["overrides"])


class MissionTask(Task):
    """Tasks of this library, with the single member `MAPPING`."""

    MAPPING = None

    @staticmethod
    def associated_class() -> type[TaskClass]:
        """Return the class of the task."""
        return MissionClass

    def get_task(self, config: dict[str, Any] | None = None) -> TaskClass:
        """Return the task; `mapping.yaml` provides the keys that `config` lacks."""
        file = _CONF / "task" / "marl_framework" / "mapping.yaml"
        return super().get_task(yaml.safe_load(file.read_text("utf-8")) | (config or {}))


def _select_spec(env: EnvBase, selected: str | tuple[str, str]) -> Composite:
    spec = env.full_observation_spec_unbatched.clone()
    for key in set(spec.keys(True, True)) - {selected}:
        del spec[key]
    if selected == "state":
        del spec[GROUP]  # the group is empty now
    return spec


if MissionTask not in tasks:
    tasks.append(MissionTask)
    task_config_registry["marl_framework/mapping"] = MissionTask.MAPPING


def main() -> int:
    """Run BenchMARL's command line; return the exit code, 2 for a bad params file."""
    from benchmarl.run import hydra_experiment  # needed only here

    sys.argv.append(f"hydra.searchpath=[file://{_CONF}]")
    # Without this variable, Hydra prints a ConfigError itself and exits.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        hydra_experiment()
    except ConfigError as error:
        warn(f"error: {error}")
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
