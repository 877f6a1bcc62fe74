"""Trained teams: find a checkpoint, configure its missions, load its networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.protocol import Algorithm
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import (
    MISSION,
    config_from_dict,
    config_to_dict,
    differences,
    load_config,
    resolve_config_path,
)
from marl_framework.config.messages import show
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.kernels import make_builder
from marl_framework.observations.predictor import predictor_of, predictor_state, predictor_weights
from marl_framework.runs.checkpoint import load_checkpoint, misfit, tensors_checksum
from marl_framework.runs.names import checkpoint_file, checkpoint_name

_LATTICE = (
    "environment.x_dim",
    "environment.y_dim",
    "experiment.constraints.spacing",
    "experiment.constraints.min_altitude",
    "experiment.constraints.max_altitude",
)
_ACTIONS = "experiment.constraints.num_actions"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file and its content."""

    path: Path
    payload: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`pretrained:NAME` if it comes with the library, else its path."""
        return checkpoint_name(self.path)


def find_checkpoint(name: str) -> Checkpoint:
    """Read a checkpoint file, or the best or else the last checkpoint of a run folder.

    Raises:
        ConfigError: there is no checkpoint, or it cannot be read.
    """
    path = checkpoint_file(name)
    return Checkpoint(path, load_checkpoint(path))


def load_team(name: str) -> Checkpoint:
    """Read the checkpoint of a trained team, see `find_checkpoint`.

    Raises:
        ConfigError: there is none, or it is something else.
    """
    checkpoint = find_checkpoint(name)
    _check_team(checkpoint)
    return checkpoint


def _check_team(checkpoint: Checkpoint) -> None:
    if isinstance(checkpoint.payload.get("actor"), Mapping):
        return
    what = "it lacks the key actor"
    if "predictor" in checkpoint.payload:
        what = (
            "it is a map predictor, no team; networks.predictor and "
            "experiment.baselines.search.predictor name such"
        )
    raise ConfigError(f"checkpoint {checkpoint.path}: {what}")


def mission_config(
    file: str | None, overrides: Sequence[str], checkpoint: Checkpoint | None
) -> Config:
    """Return the configuration of the missions, with observation and networks of the checkpoint.

    Args:
        file: params file; None for the configuration in the checkpoint.
        overrides: `section.key=value` each; they take precedence over file and checkpoint.
        checkpoint: trained team, if one flies.

    Raises:
        ConfigError: the configuration is missing or invalid.
    """
    if checkpoint is None:
        if file is None:
            raise ConfigError("--config: give a params file, or a trained team with --checkpoint")
        return load_config(resolve_config_path(file), overrides)
    if file is None:
        return config_from_dict(_trained(checkpoint), _source(checkpoint), overrides)
    path = resolve_config_path(file)
    flown = _of_team(load_config(path, overrides), checkpoint)
    return config_from_dict(flown, str(path), overrides)


def deployed_config(overrides: Sequence[str], checkpoint: Checkpoint) -> Config:
    """Return the mission that a team was trained for, over the map that `overrides` name.

    Raises:
        ConfigError: the configuration is missing or invalid.
    """
    trained = _trained(checkpoint)
    del trained["sensor"]["simulation"]  # the training's terrain
    return config_from_dict(trained, _source(checkpoint), overrides)


def with_team(config: Config, checkpoint: Checkpoint) -> Config:
    """Return a configuration of missions with observation and networks of a checkpoint.

    Raises:
        ConfigError: the checkpoint has no configuration, or the two do not go together.
    """
    return config_from_dict(_of_team(config, checkpoint), _source(checkpoint))


def _of_team(config: Config, checkpoint: Checkpoint) -> dict[str, Any]:
    flown, trained = config_to_dict(config), _trained(checkpoint)
    flown["observation"] = trained["observation"]
    flown["networks"] = trained["networks"]
    flown["learning"] = trained["learning"]  # only the team's own algorithm knows all its keys
    flown["environment"]["num_envs"] = trained["environment"]["num_envs"]  # its rates fit to that
    flown["experiment"]["algorithm"] = trained["experiment"]["algorithm"]
    return flown


def _trained(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the configuration that a team was trained with."""
    saved = checkpoint.payload.get("config")
    if not isinstance(saved, Mapping):
        raise ConfigError(f"checkpoint {checkpoint.path}: it lacks the key config")
    return config_to_dict(config_from_dict(saved, _source(checkpoint)))


def _source(checkpoint: Checkpoint) -> str:
    return f"configuration in checkpoint {checkpoint.path}"


def check_lattice(ours: Config, other: Config, who: str) -> None:
    """Check that two configurations have the same positions and actions.

    Args:
        ours: of the team that learns.
        other: of other missions, or of another team.
        who: the other is, for messages.

    Raises:
        ConfigError: names the key that differs.
    """
    keys = () if ours.geometry.lattice_shape == other.geometry.lattice_shape else _LATTICE
    refuse_differences(ours, other, (*keys, _ACTIONS), who)


def refuse_differences(ours: Config, other: Config, keys: Sequence[str], who: str) -> None:
    """Check that two configurations have the same values of some keys.

    Raises:
        ConfigError: names the key that differs.
    """
    if differing := differences(other, ours, keys):
        key, (there, here) = next(iter(differing.items()))
        raise ConfigError(
            f"{who}: {key} is {show(there)}, and {show(here)} of the team that learns; a network "
            "knows one lattice, set of actions and list of channels"
        )


def other_mission(ours: Config, other: Config) -> list[str]:
    """Return the keys in which the missions of two configurations differ."""
    parts = tuple(f"{part}." for part in MISSION)
    return [key for key in differences(ours, other) if f"{key}.".startswith(parts)]


def team_weights(checkpoint: Checkpoint, key: str) -> dict[str, str]:
    """Return checksums of a trained team and of what it sees through, see `check_weights`.

    Args:
        checkpoint: of the team.
        key: that names it.

    Raises:
        ConfigError: its predictor cannot be read.
    """
    found = {f"{key}: {checkpoint.name}": tensors_checksum(checkpoint.payload["actor"])}
    config = mission_config(None, (), checkpoint)
    if config.observation.sees_prediction:
        found |= predictor_weights(config.networks.predictor, f"{key}: networks.predictor")
    return found


def team_logits(
    environment: MissionEnvironment, checkpoint: Checkpoint
) -> Callable[[MissionState], Tensor]:
    """Return what gives a trained team's logits [E, N, A] in a state.

    The team sees through its own channels, also what the missions do not keep up to date.

    Raises:
        ConfigError: the team cannot fly there.
    """
    config = with_team(environment.config, checkpoint)
    act = trained_team(config, checkpoint, environment.device).act
    builder = make_builder(environment, config)
    sees, kept = (each.observation.sees_uncertainty for each in (config, environment.config))

    @torch.no_grad()
    def logits(state: MissionState) -> Tensor:
        if sees and not kept:
            state = replace(state, pooled_uncertainty=environment.pooled_uncertainty(state))
        return act(builder.actor(state))

    return logits


def trained_team(config: Config, checkpoint: Checkpoint, device: torch.device | str) -> Algorithm:
    """Return an algorithm with the trained actor; its other networks are untrained.

    Raises:
        ConfigError: the checkpoint's actor does not fit the configuration.
    """
    team = make_algorithm(config, device)
    _check_team(checkpoint)
    actor, saved = team.modules["actor"], checkpoint.payload["actor"]
    where = misfit(actor.state_dict(), saved)
    if where is not None:
        trained = mission_config(None, (), checkpoint)
        keys = () if config.geometry.lattice_shape == trained.geometry.lattice_shape else _LATTICE
        if differing := differences(trained, config, (*keys, _ACTIONS)):
            key, (there, here) = next(iter(differing.items()))
            where = f"{key} is {there} there, {here} here"
        raise ConfigError(
            f"checkpoint {checkpoint.path}: its actor does not fit the configuration: {where}; "
            "keep lattice, num_actions, observation and networks.actor as they were in training"
        )
    actor.load_state_dict(dict(saved))
    return team


def weights_alone(checkpoint: Checkpoint, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the least that a checkpoint needs to fly: configuration and actor, or map predictor.

    Args:
        checkpoint: of a trained team or of a map predictor.
        overrides: of its configuration, `section.key=value` each.

    Raises:
        ConfigError: the checkpoint has neither, or an override is not right.
    """
    config = mission_config(None, overrides, checkpoint)
    kept = {"config": config_to_dict(config)}
    if "predictor" in checkpoint.payload:
        network = predictor_of(checkpoint.payload, f"--checkpoint: {checkpoint.path}")
        return kept | predictor_state(network, checkpoint.payload["width"])
    return kept | {"actor": trained_team(config, checkpoint, "cpu").modules["actor"].state_dict()}
