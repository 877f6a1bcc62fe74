"""Makes planners by name, the trained team among them, and the world they fly in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl_framework.algorithms.coma import COMAWrapper, mission_sizes
from marl_framework.config.dotted import load_part
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import (
    config_from_dict,
    config_to_dict,
    load_config,
    resolve_config_path,
)
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import (
    CoveragePlanner,
    InformationGainPlanner,
    LearnedPlanner,
    OraclePlanner,
    Planner,
    RandomPlanner,
)
from marl_framework.runs.checkpoint import load_checkpoint

_MISSION_TYPES = {
    "COMA": "learned",
    "random": "random",
    "lawnmower": "coverage",
    "information_gain": "information_gain",
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file and what it holds."""

    path: Path
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Hangar:
    """What planners are made of."""

    environment: MissionEnvironment
    checkpoint: Checkpoint | None = None
    greedy: bool = True
    """The trained team takes its best actions, and does not draw them."""

    @property
    def config(self) -> Config:
        """The missions."""
        return self.environment.config


def _learned(hangar: Hangar) -> Planner:
    if hangar.checkpoint is None:
        raise ConfigError("--policies learned: give the trained team with --checkpoint")
    env = hangar.environment
    wrapper = trained_team(hangar.config, hangar.checkpoint, env.device)
    builder = ObservationBuilder(hangar.config, env.lattice, env.camera)
    return LearnedPlanner(wrapper, builder, env.lattice, hangar.greedy)


def _information_gain(hangar: Hangar) -> Planner:
    env, settings = hangar.environment, hangar.config.experiment.baselines.information_gain
    prior = hangar.config.mapping.prior
    return InformationGainPlanner(env.lattice, env.camera, prior, settings.communication)


PLANNERS: dict[str, Callable[[Hangar], Planner]] = {
    "learned": _learned,
    "information_gain": _information_gain,
    "coverage": lambda hangar: CoveragePlanner(hangar.config, hangar.environment.lattice),
    "random": lambda hangar: RandomPlanner(hangar.environment.lattice),
    "oracle": lambda hangar: OraclePlanner(hangar.config, hangar.environment.lattice),
}
"""How to make each planner that `--policies` knows."""


def planner_of(mission_type: str) -> str:
    """Return the name of the planner that flies an `experiment.missions.type`."""
    return _MISSION_TYPES.get(mission_type, mission_type)


def make_planner(name: str, hangar: Hangar) -> Planner:
    """Return a planner.

    Args:
        name: of `PLANNERS`, or the dotted path of a user's own; that is called with the
            environment.
        hangar: what planners are made of.

    Raises:
        ConfigError: it cannot be made.
    """
    if name in PLANNERS:
        return PLANNERS[name](hangar)
    planner: Planner = load_part(name, "planner", "environment")(hangar.environment)
    if not (
        isinstance(getattr(planner, "name", None), str) and callable(getattr(planner, "act", None))
    ):
        raise ConfigError(f"planner: {name}: a planner has name and act(state, generator)")
    return planner


def find_checkpoint(name: str) -> Checkpoint:
    """Read a checkpoint file, or the best one, else the last, of a run folder.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    path = Path(name)
    if path.is_dir():
        candidates = [path / "checkpoints" / file for file in ("best.pt", "last.pt")]
        found = [file for file in candidates if file.is_file()]
        if not found:
            raise ConfigError(
                f"--checkpoint {name}: the folder holds neither checkpoints/best.pt nor "
                "checkpoints/last.pt; give a run folder or a checkpoint file"
            )
        path = found[0]
    return Checkpoint(path, load_checkpoint(path))


def world(file: str | None, overrides: Sequence[str], checkpoint: Checkpoint | None) -> Config:
    """Return the missions' configuration, with the inputs and widths of the trained networks.

    Args:
        file: params file; None for the configuration of the checkpoint.
        overrides: `section.key=value` each; they win over file and checkpoint.
        checkpoint: of the trained team, if it flies.

    Raises:
        ConfigError: one line that names the file, the key, and what is right.
    """
    if checkpoint is None:
        if file is None:
            raise ConfigError("--config: give a params file, or a team with --checkpoint")
        return load_config(resolve_config_path(file), overrides)
    source = f"configuration in checkpoint {checkpoint.path}"
    saved = checkpoint.payload.get("config")
    if not isinstance(saved, Mapping):
        raise ConfigError(f"checkpoint {checkpoint.path}: it lacks the key config")
    if file is None:
        return config_from_dict(saved, source, overrides)
    trained = config_to_dict(config_from_dict(saved, source))
    path = resolve_config_path(file)
    flown = config_to_dict(load_config(path, overrides))
    flown["observation"] = trained["observation"]
    for network in ("actor", "critic"):
        flown["networks"][network] = trained["networks"][network]
    return config_from_dict(flown, str(path), overrides)


def trained_team(config: Config, checkpoint: Checkpoint, device: torch.device | str) -> COMAWrapper:
    """Return networks whose actor is the trained one; critics are new.

    Raises:
        ConfigError: the checkpoint's actor does not fit the configuration; says where.
    """
    wrapper = COMAWrapper(config.networks, mission_sizes(config), device)
    _load_actor(wrapper.actor, checkpoint)
    return wrapper


def _load_actor(actor: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Load the trained actor, see `trained_team`."""
    saved = checkpoint.payload.get("actor")
    if not isinstance(saved, Mapping):
        raise ConfigError(f"checkpoint {checkpoint.path}: it lacks the key actor")
    ours = {name: _shape(value) for name, value in actor.state_dict().items()}
    theirs = {str(name): _shape(value) for name, value in saved.items()}
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"checkpoint {checkpoint.path}: its actor does not fit the configuration: {name} "
                f"is {theirs.get(name, 'absent')} there, {ours.get(name, 'absent')} here; keep "
                "lattice, num_actions, observation and networks.actor as they were in training"
            )
    actor.load_state_dict(dict(saved))


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return "no tensor"
    return "x".join(str(length) for length in value.shape) or "a number"
