"""Trained teams: find a checkpoint, configure missions for the team, load the networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.registry import make_algorithm
from marl_framework.algorithms.rollout import Algorithm
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
from marl_framework.observations.builder import make_builder
from marl_framework.observations.prediction import predictor_of, predictor_state, predictor_weights
from marl_framework.runs.checkpoint import load_checkpoint, misfit, tensors_checksum
from marl_framework.runs.names import checkpoint_file, checkpoint_name

_SIDES = ("environment.area", "environment.x_dim", "environment.y_dim")
_LEVELS = tuple(f"experiment.constraints.{k}" for k in ("spacing", "min_altitude", "max_altitude"))
_RATIOS: dict[str, Callable[[Config], float]] = {
    "experiment.constraints.min_altitude / spacing": lambda config: (
        config.experiment.constraints.min_altitude / config.experiment.constraints.spacing
    ),
    "sensor.field_of_view.angle_x": lambda config: config.sensor.field_of_view.angle_x,
    "sensor.field_of_view.angle_y": lambda config: config.sensor.field_of_view.angle_y,
}
"""Altitudes and footprints relative to the spacing: all that a team knows of their scale."""
_ACTIONS = "experiment.constraints.num_actions"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file and its content."""

    path: Path
    payload: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`pretrained:NAME` for a checkpoint that comes with the library, else the path."""
        return checkpoint_name(self.path)

    @property
    def source(self) -> str:
        """Name of the checkpoint's configuration in messages."""
        return f"configuration in checkpoint {self.path}"

    def config(self, overrides: Sequence[str] = ()) -> Config:
        """Return the training's configuration, with overrides.

        Raises ConfigError if the configuration is missing or invalid.
        """
        saved = self.payload.get("config")
        if not isinstance(saved, Mapping):
            raise ConfigError(f"checkpoint {self.path}: the key config is missing")
        return config_from_dict(saved, self.source, overrides)

    def actor(self) -> Mapping[str, Tensor]:
        """Return the actor's weights. Raises ConfigError if the checkpoint has no actor."""
        actor = self.payload.get("actor")
        if isinstance(actor, Mapping):
            return actor
        problem = "the key actor is missing"
        if "predictor" in self.payload:
            problem = "it holds a map predictor, not a team; use it for networks.predictor"
        raise ConfigError(f"checkpoint {self.path}: {problem}")


def find_checkpoint(name: str) -> Checkpoint:
    """Read a checkpoint file, or a run folder's best checkpoint (the last if there is no best).

    Raises:
        ConfigError: there is no checkpoint, or it cannot be read.
    """
    path = checkpoint_file(name)
    return Checkpoint(path, load_checkpoint(path))


def load_team(name: str) -> Checkpoint:
    """Read the checkpoint of a trained team; see `find_checkpoint`.

    Raises ConfigError if the checkpoint does not exist or holds no team.
    """
    checkpoint = find_checkpoint(name)
    checkpoint.actor()
    return checkpoint


def mission_config(
    file: str | None, overrides: Sequence[str], checkpoint: Checkpoint | None
) -> Config:
    """Return the missions' configuration, with the checkpoint's observation and networks.

    Args:
        file: params file; None for the configuration in the checkpoint.
        overrides: `section.key=value` strings; take precedence over file and checkpoint.
        checkpoint: checkpoint of the trained team; None if no trained team flies.

    Raises:
        ConfigError: the configuration is missing or invalid.
    """
    if file is not None:
        path = resolve_config_path(file)
        config = load_config(path, overrides)
        if checkpoint is None:
            return config
        return with_team(config, checkpoint, str(path), overrides)
    if checkpoint is None:
        raise ConfigError("--config: give a params file, or a trained team with --checkpoint")
    trained = config_to_dict(checkpoint.config())
    del trained["deployment"]  # no training uses it
    return config_from_dict(trained, checkpoint.source, overrides)


def deployed_config(overrides: Sequence[str], checkpoint: Checkpoint) -> Config:
    """Return the team's training missions, moved to the map that `overrides` name."""
    trained = config_to_dict(checkpoint.config())
    # A training has no use for these: they describe its terrain, and a place to fly at.
    del trained["sensor"]["simulation"], trained["deployment"]
    return config_from_dict(trained, checkpoint.source, overrides)


def with_team(
    config: Config,
    checkpoint: Checkpoint,
    source: str | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Return `config` with the checkpoint's observation, networks and learning settings.

    Raises ConfigError, citing `source` or the checkpoint, if the parts do not fit together.
    """
    missions, trained = config_to_dict(config), config_to_dict(checkpoint.config())
    # Keys of `learning` depend on the algorithm; learning rates depend on `num_envs`.
    missions |= {name: trained[name] for name in ("observation", "networks", "learning")}
    missions["environment"]["num_envs"] = trained["environment"]["num_envs"]
    missions["experiment"]["algorithm"] = trained["experiment"]["algorithm"]
    return config_from_dict(missions, source or checkpoint.source, overrides).listed_like(config)


def check_lattice(ours: Config, other: Config, who: str, keys: Sequence[str] = ()) -> None:
    """Check that networks of `other` fit into `ours`, and that values of `keys` are equal.

    They need the same actions and the same altitudes and footprints relative to the spacing, and
    without a window as many positions. Raises ConfigError if not. The message begins with `who`,
    the owner of `other`.
    """
    if difference := _difference(ours, other, keys):
        raise ConfigError(f"{who}: {difference}; make them equal")


def _difference(ours: Config, other: Config, keys: Sequence[str] = ()) -> str | None:
    """Describe the first difference that `check_lattice` finds; None if there is none."""
    (*here, levels_here), (*there, levels_there) = (
        config.geometry.lattice_shape for config in (ours, other)
    )
    shown: tuple[str, ...] = _LEVELS[::-1] if levels_here != levels_there else ()
    if here != there and other.observation.window is None:
        shown = (*_SIDES, *_LEVELS)
    for key, (own, others) in differences(ours, other, (*shown, _ACTIONS, *keys)).items():
        return f"{key} is {show(others)} there, {show(own)} here"
    for name, ratio in _RATIOS.items():
        if not math.isclose(ratio(ours), ratio(other), rel_tol=1e-6):
            return f"{name} is {ratio(other):g} there, {ratio(ours):g} here"
    return None


def other_mission(ours: Config, other: Config) -> list[str]:
    """Return the mission keys whose values differ between two configurations."""
    sections = tuple(f"{section}." for section in MISSION)
    return [key for key in differences(ours, other) if f"{key}.".startswith(sections)]


def team_weights(checkpoint: Checkpoint, key: str) -> dict[str, str]:
    """Return checksums of a team's actor and predictor, for `check_weights`; `key` names it."""
    checksums = {f"{key}: {checkpoint.name}": tensors_checksum(checkpoint.actor())}
    config = checkpoint.config()
    if config.observation.sees_prediction:
        checksums |= predictor_weights(config.networks.predictor, f"{key}: networks.predictor")
    return checksums


def team_logits(
    environment: MissionEnvironment, checkpoint: Checkpoint
) -> Callable[[MissionState], Tensor]:
    """Return a function that maps states to the team's logits, [E, N, A].

    The function builds the team's own observation channels, which may differ from the
    environment's. Raises ConfigError if the team does not fit the environment.
    """
    config = with_team(environment.config, checkpoint)
    act = trained_team(config, checkpoint, environment.device).act
    builder = make_builder(environment, config)
    needed = config.observation.sees_uncertainty
    available = environment.config.observation.sees_uncertainty

    @torch.no_grad()
    def logits(state: MissionState) -> Tensor:
        if needed and not available:
            state = replace(state, pooled_uncertainty=environment.pooled_uncertainty(state))
        return act(builder.actor(state))

    return logits


def trained_team(config: Config, checkpoint: Checkpoint, device: torch.device | str) -> Algorithm:
    """Return an algorithm with the trained actor only; raise ConfigError if it does not fit."""
    team = make_algorithm(config, device)
    actor, saved = team.modules["actor"], checkpoint.actor()
    if problem := _difference(config, checkpoint.config()) or misfit(actor.state_dict(), saved):
        raise ConfigError(
            f"checkpoint {checkpoint.path}: the actor does not fit the configuration: {problem}; "
            "use the lattice (or a multiple of its lengths), num_actions, observation and "
            "networks.actor from the training"
        )
    actor.load_state_dict(dict(saved))
    return team


def weights_alone(checkpoint: Checkpoint, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the configuration and the weights of the actor or map predictor.

    Raises ConfigError if the checkpoint has neither network, or an override is invalid.
    """
    config, payload = checkpoint.config(overrides), checkpoint.payload
    kept = {"config": config_to_dict(config)}
    if "predictor" in payload:
        network = predictor_of(payload, f"--checkpoint: {checkpoint.path}")
        return kept | predictor_state(network, payload["width"])
    return kept | {"actor": trained_team(config, checkpoint, "cpu").modules["actor"].state_dict()}
