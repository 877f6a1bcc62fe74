"""What a training run takes from a trained team: its weights to start with, or a pull to it."""

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

_SEEN = tuple(f"observation.{name}" for name in (*ACTOR_CHANNELS, "heard_uavs"))
_OF_CRITIC = ("experiment.algorithm", *(f"observation.{name}" for name in CRITIC_ONLY_CHANNELS))
_PREDICTOR = "networks.predictor"


def take_weights(
    algorithm: Algorithm, config: Config, checkpoint: Checkpoint
) -> tuple[dict[str, Any], str]:
    """Give an algorithm the actor of a trained team, and its other networks where they fit.

    Returns:
        A record of what was taken: `checkpoint`, `networks` and `weights_sha256`; and a line.

    Raises:
        ConfigError: the actor is for another lattice, other actions, channels or sizes.
    """
    trained, saved = mission_config(None, (), checkpoint), checkpoint.payload
    who = f"--init-from {checkpoint.path}"
    of_actor, of_critic = (_sizes(config, role) for role in ("actor", "critic"))
    check_lattice(config, trained, who, (*_SEEN, *of_actor))
    wrong = {n: misfit(m.state_dict(), saved.get(n)) for n, m in algorithm.modules.items()}
    if wrong["actor"]:
        raise ConfigError(f"{who}: it does not fit networks.actor: {wrong['actor']}")
    lacks = [*differences(config, trained, (*_OF_CRITIC, *of_critic))]
    lacks += [f"{name}: {where}" for name, where in wrong.items() if where]
    lack = lacks[0] if lacks else None
    taken = ["actor"] if lack else list(wrong)
    for name in taken:
        algorithm.modules[name].load_state_dict(saved[name])
    if not lack and hasattr(algorithm, "take_value_scale"):
        algorithm.take_value_scale(saved)
    rest = f"; the rest is new, because it differs in {lack}" if lack else ""
    line = f"starts with {', '.join(taken)} of {checkpoint.name}{rest}"
    checksum = tensors_checksum(*(saved[name] for name in taken))
    record = {"checkpoint": checkpoint.name, "networks": taken, "weights_sha256": checksum}
    return record, line


def follow_teacher(
    algorithm: Algorithm, config: Config, device: torch.device, made: int = 0
) -> dict[str, str]:
    """Pull an algorithm to the trained team of `learning.teacher`, while that has a weight.

    Args:
        algorithm: algorithm that learns.
        config: configuration of the training.
        device: device of the training.
        made: number of training steps made before.

    Returns:
        A checksum of the teacher's weights, see `check_weights`; empty without a teacher.

    Raises:
        ConfigError: the team has another lattice, other actions or channels, it learned with
            another predictor, or the algorithm cannot be pulled.
    """
    teacher = config.learning.teacher
    if not teacher.weight or teacher.run is None or 0 < teacher.anneal_steps <= made:
        return {}
    key = "learning.teacher.run"
    follow = getattr(algorithm, "follow_teacher", None)
    if follow is None:
        raise ConfigError(f"{key}: {config.experiment.algorithm} has no follow_teacher; set null")
    with found_at(key):
        checkpoint = load_team(teacher.run)
    trained = mission_config(None, (), checkpoint)
    who = f"{key} {checkpoint.path}"
    check_lattice(config, trained, who, _SEEN)
    if {*PREDICTED_CHANNELS} & {*config.observation.actor_channels}:
        here, there = (each.networks.predictor for each in (config, trained))
        theirs = checkpoint.payload.get("weights_read", {}).get(f"{_PREDICTOR}: {there}")
        if theirs is None:  # files of weights alone do not say
            theirs = predictor_checksum(there, f"{who}: {_PREDICTOR}")
        if predictor_checksum(here, _PREDICTOR) != theirs:
            raise ConfigError(
                f"{who}: {_PREDICTOR} is {there}, but {here} of the team that learns; a teacher "
                "needs the predictor that it learned with"
            )
    team = trained_team(with_team(config, checkpoint), checkpoint, device)
    follow(team.modules["actor"])
    return {f"{key}: {teacher.run}": tensors_checksum(checkpoint.payload["actor"])}


def _sizes(config: Config, role: str) -> tuple[str, ...]:
    """Return the keys of the architecture of actor or critic."""
    names = ["type", "conv_channels", "hidden_dim"]
    if getattr(config.networks, role).type == "attention":
        names += ["layers", "heads"]
    return tuple(f"networks.{role}.{name}" for name in names)
