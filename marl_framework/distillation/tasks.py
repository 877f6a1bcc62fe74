"""Tasks: missions by name, and who teaches each. Loads no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import (
    MISSION,
    config_from_dict,
    config_to_dict,
    read_text,
    with_changes,
)
from marl_framework.config.messages import show
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import parse_yaml
from marl_framework.runs.names import check_run_name

TASKS, TEACHERS = "distillation.tasks", "distillation.teachers"
_OF_TASK = (*MISSION, "experiment.reward", "experiment.baselines")
"""What a task has of its own; all else belongs to the team that flies it."""


def read_tasks(file: str) -> dict[str, dict[str, Any]]:
    """Read a tasks file: the name of each task, and below it the keys that differ.

    Raises:
        ConfigError: it cannot be read, holds something else, or a name is none.
    """
    tree = parse_yaml(read_text(Path(file)), file)
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{file}: must hold a task by its name, such as large: {{}}")
    for name, changes in tree.items():
        check_task_name(str(name), file)
        if not isinstance(changes, dict | None):
            raise ConfigError(
                f"{file}: {show(name)}: must hold sections such as experiment:, got {show(changes)}"
            )
    return {str(name): changes or {} for name, changes in tree.items()}


def read_teachers(given: Sequence[str], tasks: Sequence[str]) -> dict[str, str]:
    """Return the teacher of each task from options `TASK=TEACHER`.

    `NAME` without a task stands for the workers of that name, a run `NAME-TASK` for each task.

    Raises:
        ConfigError: one is incomplete or given twice.
    """
    teachers: dict[str, str] = {}
    for text in given:
        task, equals, teacher = text.partition("=")
        if equals and not (task and teacher):
            raise ConfigError(f"--teacher {text}: must read TASK=TEACHER, such as split=runs/a")
        if not equals and not tasks:
            raise ConfigError(
                f"--teacher {text}: name its tasks with --tasks, or one as TASK={text}"
            )
        more = {task: teacher} if equals else {name: f"{text}-{name}" for name in tasks}
        twice = teachers.keys() & more.keys()
        if twice:
            raise ConfigError(f"--teacher {text}: {min(twice)} has a teacher already")
        teachers |= more
    return teachers


def with_tasks(config: Config, file: str | None, given: Sequence[str]) -> Config:
    """Return a configuration with the tasks of a file and the teachers of options.

    Args:
        config: whose tasks and teachers stay where there is no file or no option.
        file: see `read_tasks`.
        given: see `read_teachers`.

    Raises:
        ConfigError: they are invalid, do not go together, or there is no teacher.
    """
    changes: dict[str, Any] = {}
    if file is not None:
        changes["tasks"] = read_tasks(file)
    if given:
        changes["teachers"] = read_teachers(
            given, list(changes.get("tasks", config.distillation.tasks))
        )
    config = with_changes(config, {"distillation": changes}, file or "--teacher")
    settings = config.distillation
    if not settings.teachers:
        raise ConfigError(f"{TEACHERS}: there is none; name one with --teacher TASK=TEACHER")
    lonely = settings.tasks.keys() - settings.teachers.keys()
    if lonely:
        name = min(lonely)
        raise ConfigError(f"{TEACHERS}: {name} has none; name it with --teacher {name}=TEACHER")
    for name in settings.teachers:
        check_task_name(name, TEACHERS)
    for name in settings.tasks:
        task_config(config, name)
    return config


def check_task_name(name: str, where: str) -> None:
    """Check the name of a task, which is part of names of runs and metrics.

    Args:
        name: of the task.
        where: it stands, for messages.

    Raises:
        ConfigError: it has other signs than a run name.
    """
    try:
        check_run_name(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: a task's name is part of a {error}") from error


def task_config(config: Config, name: str) -> Config:
    """Return a configuration with everything that a task changes.

    Raises:
        ConfigError: the result is invalid.
    """
    return with_changes(config, config.distillation.tasks[name], f"{TASKS}.{name}")


def with_mission(student: Config, mission: Config, name: str) -> Config:
    """Return the student's configuration with the mission of another one.

    Args:
        student: says how its team sees, learns and computes.
        mission: says where it flies.
        name: of the task, for messages.

    Raises:
        ConfigError: the two do not go together.
    """
    tree, other = config_to_dict(student), config_to_dict(mission)
    for key in _OF_TASK:
        *sections, last = key.split(".")
        ours, theirs = tree, other
        for section in sections:
            ours, theirs = ours[section], theirs[section]
        ours[last] = theirs[last]
    return config_from_dict(tree, f"task {name}")
