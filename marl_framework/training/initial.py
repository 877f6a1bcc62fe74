"""Use of a trained team in a training: as initial weights, or as teacher of the policy."""

from __future__ import annotations

from typing import Any

import torch

from marl_framework.algorithms.rollout import Algorithm
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.learning import ACTOR_CHANNELS, CRITIC_ONLY_CHANNELS, PREDICTED_CHANNELS
from marl_framework.config.loading import differences
from marl_framework.config.model import Config
from marl_framework.observations.prediction import predictor_checksum
from marl_framework.planners.team import (
    Checkpoint,
    check_lattice,
    load_team,
    mission_config,
    trained_team,
    with_team,
)
from marl_framework.runs.checkpoint import misfit, tensors_checksum

_ACTOR_KEYS = tuple(f"observation.{name}" for name in (*ACTOR_CHANNELS, "heard_uavs", "window"))
_CRITIC_KEYS = ("experiment.algorithm", *(f"observation.{name}" for name in CRITIC_ONLY_CHANNELS))
_PREDICTOR = "networks.predictor"


def take_weights(
    algorithm: Algorithm, config: Config, checkpoint: Checkpoint
) -> tuple[dict[str, Any], str]:
    """Load the actor of a trained team, and the team's other networks if they fit.

    Returns a record with keys `checkpoint`, `networks` and `weights_sha256`, and a line to print.
    Raises ConfigError if the actor has another lattice, other actions, channels or sizes.
    """
    trained, saved = mission_config(None, (), checkpoint), checkpoint.payload
    source = f"--init-from {checkpoint.path}"
    actor_sizes, critic_sizes = (_size_keys(config, role) for role in ("actor", "critic"))
    check_lattice(config, trained, source, (*_ACTOR_KEYS, *actor_sizes))
    misfits = {n: misfit(m.state_dict(), saved.get(n)) for n, m in algorithm.modules.items()}
    if misfits["actor"]:
        raise ConfigError(f"{source}: does not fit networks.actor: {misfits['actor']}")
    reasons = [*differences(config, trained, (*_CRITIC_KEYS, *critic_sizes))]
    reasons += [f"{name}: {where}" for name, where in misfits.items() if where]
    reason = reasons[0] if reasons else None
    loaded = ["actor"] if reason else list(misfits)
    for name in loaded:
        algorithm.modules[name].load_state_dict(saved[name])
    if not reason and hasattr(algorithm, "take_value_scale"):
        algorithm.take_value_scale(saved)
    if reason and hasattr(algorithm, "update_targets"):  # one of them may follow the actor
        algorithm.update_targets()
    rest = f"; other networks are new, because they differ in {reason}" if reason else ""
    line = f"starts with {', '.join(loaded)} of {checkpoint.name}{rest}"
    checksum = tensors_checksum(*(saved[name] for name in loaded))
    record = {"checkpoint": checkpoint.name, "networks": loaded, "weights_sha256": checksum}
    return record, line


def follow_teacher(
    algorithm: Algorithm, config: Config, device: torch.device, made: int = 0
) -> dict[str, str]:
    """Set the trained team of `learning.teacher` as teacher, unless the teacher's weight is 0.

    `made` is the number of training steps made before. Returns the checksum of the teacher's
    weights, for `check_weights`; empty without a teacher. Raises ConfigError if the teacher has
    another lattice, other actions, channels or predictor, or the algorithm supports no teacher.
    """
    teacher = config.learning.teacher
    if not teacher.weight or teacher.run is None or 0 < teacher.anneal_steps <= made:
        return {}
    key = "learning.teacher.run"
    follow = getattr(algorithm, "follow_teacher", None)
    if follow is None:
        raise ConfigError(
            f"{key}: {config.experiment.algorithm} has no follow_teacher method; set null"
        )
    with found_at(key):
        checkpoint = load_team(teacher.run)
    trained = mission_config(None, (), checkpoint)
    source = f"{key} {checkpoint.path}"
    check_lattice(config, trained, source, _ACTOR_KEYS)
    if {*PREDICTED_CHANNELS} & {*config.observation.actor_channels}:
        own, used = (each.networks.predictor for each in (config, trained))
        checksum = checkpoint.payload.get("weights_read", {}).get(f"{_PREDICTOR}: {used}")
        if checksum is None:  # weights-only files record no checksum
            checksum = predictor_checksum(used, f"{source}: {_PREDICTOR}")
        if predictor_checksum(own, _PREDICTOR) != checksum:
            raise ConfigError(
                f"{source}: {_PREDICTOR} is {used}, but {own} in this configuration; teacher and "
                "trained team must use the same predictor"
            )
    team = trained_team(with_team(config, checkpoint), checkpoint, device)
    follow(team.modules["actor"])
    return {f"{key}: {teacher.run}": tensors_checksum(checkpoint.payload["actor"])}


def _size_keys(config: Config, role: str) -> tuple[str, ...]:
    """Return the keys that describe the architecture of the actor or critic."""
    names = ["type", "conv_channels", "hidden_dim"]
    if getattr(config.networks, role).type == "attention":
        names += ["layers", "heads"]
    return tuple(f"networks.{role}.{name}" for name in names)
