"""Resume a run: find the saved state and check that the training is still the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict, differences, load_config
from marl_framework.config.messages import KEYS, SECTIONS, show, unknown_key
from marl_framework.config.model import Config
from marl_framework.runs.checkpoint_store import newest_checkpoint
from marl_framework.runs.files import read_json
from marl_framework.runs.folder import INITIAL_WEIGHTS, TRAINING_FOLDERS, RunFolder

_DIRECTORY = "logging.directory"  # may differ, because a run folder can be moved


@dataclass
class Resumption:
    """A run to resume; without arguments, none."""

    run: RunFolder | None = None
    """Run folder; None on ranks other than 0."""
    payload: dict[str, Any] | None = None
    """Newest checkpoint; None if the run was killed before the first checkpoint."""
    changed: dict[str, Any] = field(default_factory=dict)
    """New values of the configuration keys that have changed."""
    finished: bool = False
    """Whether the training is complete."""
    initial: str | None = None
    """Checkpoint of the run's initial weights, if any."""

    @property
    def step(self) -> int:
        """Number of training steps in the checkpoint; 0 without a checkpoint."""
        return 0 if self.payload is None else int(self.payload["training_step"])


def find_run(
    name: str,
    config: Config,
    mark: str,
    allowed: Sequence[str] | None = (),
    report: Callable[[str], None] = print,
) -> Resumption:
    """Lock a run and load the saved state, if a run has this name.

    `mark` is a key that only checkpoints of this kind of training contain. `allowed` has the keys
    that may differ from the checkpoint's configuration; None if the command has no option to allow
    keys. `report` prints warnings about damaged checkpoints. Raises ConfigError if the run is in
    training or not a training, the checkpoints are unreadable or belong to another kind of
    training, or other keys differ; the message names these keys.
    """
    for key in allowed or ():
        if key not in KEYS and key not in SECTIONS:
            raise ConfigError(f"--allow-changed {key}: {unknown_key(key)}")
    run = RunFolder.take(config.logging.directory, name)
    if run is None:
        return Resumption()
    try:
        payload = newest_checkpoint(run.checkpoints, report)
        finished = read_json(run.summary_file, "results").get("finished") is True
        initial = read_json(run.environment_file, INITIAL_WEIGHTS).get("checkpoint")
        earlier = config
        if payload is not None:
            if mark not in payload or not isinstance(payload.get("config"), Mapping):
                raise ConfigError(
                    f"{run.path}: checkpoints of another kind of training or another version; "
                    "choose another run name, or resume with the command that started the run"
                )
            earlier = config_from_dict(payload["config"], f"configuration in {run.checkpoints}")
        elif run.config_file.exists():  # else killed before writing one
            if not any((run.path / folder).is_dir() for folder in TRAINING_FOLDERS):
                wrong = f"run name {name}: {run.path} is not a training"
                raise ConfigError(f"{wrong}; choose another name")
            earlier = load_config(run.config_file)
        changed = differences(earlier, config, [key for key in KEYS if key != _DIRECTORY])
        _refuse_changes(run.path, changed, allowed)
        new = {key: value for key, (_, value) in changed.items()}
        return Resumption(run, payload, new, finished and not changed, initial)
    except BaseException:
        run.release()
        raise


def _refuse_changes(
    where: Path, changed: Mapping[str, tuple[Any, Any]], allowed: Sequence[str] | None
) -> None:
    prefixes = tuple(f"{name}." for name in allowed or ())
    refused = {k: values for k, values in changed.items() if not f"{k}.".startswith(prefixes)}
    if refused:
        listed = ", ".join(f"{key} {show(a)} -> {show(b)}" for key, (a, b) in refused.items())
        allow = " ".join(f"--allow-changed {key}" for key in refused)
        other = "start a new run" if allowed is None else f"accept them with --resume {allow}"
        raise ConfigError(
            f"{where}: the run was started with another configuration: {listed}; restore these "
            f"keys, or {other}"
        )
