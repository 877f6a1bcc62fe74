"""Resuming a run: finds its state and checks that it is still the same training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict, differences, load_config, values_by_key
from marl_framework.config.messages import KEYS, SECTIONS, show, unknown_key
from marl_framework.config.model import Config
from marl_framework.runs.checkpoint import misfit
from marl_framework.runs.checkpoint_store import newest_checkpoint
from marl_framework.runs.files import read_json
from marl_framework.runs.folder import INITIAL_WEIGHTS, RunFolder

_ELSEWHERE = "logging.directory"  # where the run was found; it may have been moved since


@dataclass
class Resumption:
    """A run to resume."""

    run: RunFolder | None
    """None on ranks other than 0."""
    payload: dict[str, Any] | None
    """Its newest checkpoint; None if it was killed before the first one."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Keys whose values differ from the checkpoint's, with the new values."""
    finished: bool = False
    """Nothing is left to train."""
    initial: str | None = None
    """Checkpoint that it started with."""


def find_run(
    name: str,
    config: Config,
    mark: str,
    allowed: Sequence[str] | None = (),
    report: Callable[[str], None] = print,
) -> Resumption | None:
    """Claim the run of a name and find its state; None if there is no such run.

    Args:
        name: of the run, a folder below `logging.directory`.
        config: of the resumed training.
        mark: key that only checkpoints of this kind of training hold.
        allowed: keys that may differ from the checkpoint's configuration; None where the user
            cannot allow any.
        report: shows a warning about damaged checkpoints.

    Raises:
        ConfigError: the run is being trained, its checkpoints are unreadable or of another kind
            of training, or other keys differ; names them.
    """
    for key in allowed or ():
        if key not in KEYS and key not in SECTIONS:
            raise ConfigError(f"--allow-changed {key}: {unknown_key(key)}")
    run = RunFolder.take(config.logging.directory, name)
    if run is None:
        return None
    try:
        payload = newest_checkpoint(run.checkpoints, report)
        if payload is not None and mark not in payload:
            raise ConfigError(
                f"{run.path}: its checkpoints are of another kind of training, or of another "
                "version; choose another run name, or resume it with the command that began it"
            )
        changed = changed_keys(_saved_configuration(run, payload, config), config)
        refuse_changes(run.path, changed, allowed)
        finished = read_json(run.summary_file, "results").get("finished") is True
        new = values_by_key(config)
        started = read_json(run.environment_file, INITIAL_WEIGHTS).get("checkpoint")
        return Resumption(
            run, payload, {key: new[key] for key in changed}, finished and not changed, started
        )
    except BaseException:
        run.release()
        raise


def continue_run(found: Resumption, config: Config, device: torch.device) -> RunFolder:
    """Prepare the folder of a resumed run and record the resumption; return the folder."""
    run = found.run
    assert run is not None  # rank 0 alone goes on with a folder
    run.prepare(config, device)
    if found.changed:
        run.write_config(config)
    step = 0 if found.payload is None else int(found.payload["training_step"])
    run.note_resumption(step, found.changed)
    return run


def changed_keys(earlier: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """Return the dotted names of keys that differ, with both values."""
    return differences(earlier, now, [key for key in KEYS if key != _ELSEWHERE])


def refuse_changes(
    where: Path, changed: Mapping[str, tuple[Any, Any]], allowed: Sequence[str] | None
) -> None:
    """Refuse changes that were not allowed; None where none can be.

    Raises:
        ConfigError: names the keys with both values.
    """
    free = tuple(f"{name}." for name in allowed or ())
    refused = {key: values for key, values in changed.items() if not f"{key}.".startswith(free)}
    if refused:
        listed = ", ".join(f"{key} {show(a)} -> {show(b)}" for key, (a, b) in refused.items())
        allow = " ".join(f"--allow-changed {key}" for key in refused)
        other = "start a new run" if allowed is None else f"accept them with --resume {allow}"
        raise ConfigError(
            f"{where}: the configuration differs from that of the run: {listed}; restore these "
            f"keys, or {other}"
        )


def check_fit(network: str, ours: Mapping[str, Any], saved: object) -> None:
    """Compare the shapes of a network's tensors with saved ones.

    Raises:
        ConfigError: they differ; says where.
    """
    if not isinstance(saved, Mapping):
        raise ConfigError(f"checkpoint: it lacks the key {network}; it is of another version")
    where = misfit(ours, saved)
    if where is not None:
        raise ConfigError(
            f"checkpoint: its {network} does not fit the configuration: {where}; lattice, "
            "num_actions, observation and sizes of networks cannot change in a run; start a new one"
        )


@contextmanager
def complete_checkpoint() -> Iterator[None]:
    """Turn a `KeyError` of loading a checkpoint into the line that says what it lacks.

    Raises:
        ConfigError: the checkpoint lacks a key.
    """
    try:
        yield
    except KeyError as error:
        raise ConfigError(
            f"checkpoint: it lacks the key {error}; it is of another kind of training, or of "
            "another version"
        ) from error


def _saved_configuration(run: RunFolder, payload: dict[str, Any] | None, now: Config) -> Config:
    if payload is not None:
        saved = payload.get("config")
        if not isinstance(saved, Mapping):
            raise ConfigError(f"{run.checkpoints}: the checkpoint lacks the key config")
        return config_from_dict(saved, f"configuration in {run.checkpoints}")
    if not run.config_file.exists():  # killed before it was written
        return now
    return load_config(run.config_file)
