"""Tasks: named missions, each with a teacher; does not import PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.loading import (
    MISSION,
    config_from_dict,
    nest,
    read_text,
    values_by_key,
    with_changes,
)
from marl_framework.config.messages import show
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.config.yaml_text import parse_yaml
from marl_framework.runs.names import check_run_name

TASKS, TEACHERS = "distillation.tasks", "distillation.teachers"
_TASK_KEYS = (*MISSION, "experiment.reward", "experiment.baselines")
"""Keys that a task sets; all other keys belong to the student."""


def read_tasks(file: str) -> dict[str, dict[str, Any]]:
    """Read a tasks file: changed keys of the params file, by name of the task.

    Raises ConfigError if the file cannot be read, or contains an invalid value or name.
    """
    tree = parse_yaml(read_text(Path(file)), file)
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{file}: must be a mapping with task names, such as large: {{}}")
    for name, changes in tree.items():
        if isinstance(name, bool | None):
            raise ConfigError(f"{file}: the task name {show(name)} is no text; put it in quotes")
        with found_at(f"{file}: name of a task"):  # task names are part of run names
            check_run_name(str(name))
        if not isinstance(changes, dict | None):
            raise ConfigError(f"{file}: {show(name)}: must contain sections, got {show(changes)}")
        if name != str(name) and str(name) in tree:  # such as 1 and "1"
            raise ConfigError(f"{file}: two tasks have the name {name}; rename one")
    return {str(name): changes or {} for name, changes in tree.items()}


def read_teachers(options: Sequence[str], tasks: Sequence[str]) -> dict[str, str]:
    """Return the teacher of each task from options `TASK=TEACHER`.

    An option `NAME` without a task sets the worker `NAME-TASK` as teacher of each task. Raises
    ConfigError if an option is incomplete, or a task has two teachers.
    """
    teachers: dict[str, str] = {}
    for text in options:
        task, equals, teacher = text.partition("=")
        if equals and not (task and teacher):
            raise ConfigError(f"--teacher {text}: must be TASK=TEACHER, such as split=runs/a")
        if not equals and not tasks:
            raise ConfigError(f"--teacher {text}: requires --tasks, or a task: TASK={text}")
        added = {task: teacher} if equals else {name: f"{text}-{name}" for name in tasks}
        if repeated := teachers.keys() & added.keys():
            raise ConfigError(f"--teacher {text}: {min(repeated)} already has a teacher; omit one")
        teachers |= added
    return teachers


def with_tasks(config: Config, file: str | None, options: Sequence[str]) -> Config:
    """Return a configuration with tasks (see `read_tasks`) and teachers (see `read_teachers`).

    Without a file or options, the configuration's tasks or teachers remain. Raises ConfigError if
    tasks or teachers are invalid or missing.
    """
    changes: dict[str, Any] = {}
    if file is not None:
        changes["tasks"] = read_tasks(file)
    if options:
        tasks = changes.get("tasks", config.distillation.tasks)
        changes["teachers"] = read_teachers(options, list(tasks))
    config = with_changes(config, {"distillation": changes}, file or "--teacher")
    settings = config.distillation
    if not settings.teachers:
        raise ConfigError(f"{TEACHERS}: is empty; set a teacher with --teacher TASK=TEACHER")
    if untaught := settings.tasks.keys() - settings.teachers.keys():
        name = min(untaught)
        raise ConfigError(f"{TEACHERS}.{name}: is missing; add --teacher {name}=TEACHER")
    for name in settings.teachers:
        with found_at(f"{TEACHERS}: name of a task"):
            check_run_name(name)
    for name, changes in settings.tasks.items():
        with_changes(config, changes, f"{TASKS}.{name}")
    return config


def worker_runs(config: Config, file: str, name: str) -> dict[str, Config]:
    """Return the training configuration for each task of a file, by run name `NAME-TASK`.

    Raises ConfigError if a task is invalid or does not train.
    """
    runs: dict[str, Config] = {}
    for task, changes in read_tasks(file).items():
        run = runs[f"{name}-{task}"] = with_changes(config, changes, f"{file}: {task}")
        if not run.trains:
            key, value = "missions.mission_mode", str(run.experiment.missions.mission_mode)
            if run.experiment.policy != LEARNED:
                key, value = "policy", run.experiment.policy
            raise ConfigError(
                f"{file}: {task}: experiment.{key} is {value}, which trains no team; change it"
            )
    return runs


def with_mission(student: Config, mission: Config, name: str) -> Config:
    """Return the student's configuration with another mission; raise ConfigError if invalid."""
    prefixes = tuple(f"{key}." for key in _TASK_KEYS)
    values = values_by_key(mission).items()
    taken = {key: value for key, value in values if f"{key}.".startswith(prefixes)}
    return config_from_dict(nest(values_by_key(student) | taken), f"task {name}")
