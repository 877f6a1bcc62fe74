"""Resuming a run: finds its state and checks that it is still the same training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import differences, values_by_key
from marl_framework.config.messages import KEYS, SECTIONS, show, unknown_key
from marl_framework.config.model import Config
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
    """Whether nothing is left to train."""
    initial: str | None = None
    """Checkpoint that it started with."""

    @property
    def step(self) -> int:
        """Training step of the checkpoint, 0 without one."""
        return 0 if self.payload is None else int(self.payload["training_step"])


def find_run(
    name: str,
    config: Config,
    mark: str,
    allowed: Sequence[str] | None = (),
    report: Callable[[str], None] = print,
) -> Resumption | None:
    """Claim the run of a name and find its state; None if there is no such run.

    Args:
        name: name of the run.
        config: configuration of the resumed training.
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
                f"{run.path}: its checkpoints are of another kind of training or version; choose "
                "another run name, or resume it with the command that began it"
            )
        finished = read_json(run.summary_file, "results").get("finished") is True
        started = read_json(run.environment_file, INITIAL_WEIGHTS).get("checkpoint")
        earlier = run.configuration(payload) or config
        changed = differences(earlier, config, [key for key in KEYS if key != _ELSEWHERE])
        _refuse_changes(run.path, changed, allowed)
        new = {key: values_by_key(config)[key] for key in changed}
        return Resumption(run, payload, new, finished and not changed, started)
    except BaseException:
        run.release()
        raise


def _refuse_changes(
    where: Path, changed: Mapping[str, tuple[Any, Any]], allowed: Sequence[str] | None
) -> None:
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
