"""Teams that are to teach: a training run for each task."""

from __future__ import annotations

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.distillation.tasks import read_tasks


def worker_runs(config: Config, file: str, name: str) -> dict[str, Config]:
    """Return what is trained for each task of a file, by the name of its run: `NAME-TASK`.

    Raises:
        ConfigError: a task is invalid, or leaves nothing to train.
    """
    runs: dict[str, Config] = {}
    for task, changes in read_tasks(file).items():
        made = runs[f"{name}-{task}"] = with_changes(config, changes, f"{file}: {task}")
        policy, mode = made.experiment.policy, made.experiment.missions.mission_mode
        if not made.trains:
            key, found = (
                ("policy", policy) if policy != LEARNED else ("missions.mission_mode", mode)
            )
            raise ConfigError(
                f"{file}: {task}: experiment.{key} is {found}, so there is no team to train; a "
                "planner needs no worker to teach"
            )
    return runs
