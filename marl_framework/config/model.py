"""Typed configuration: one frozen model per YAML section; its fields are the YAML keys.

Every value is checked once, here or in the sections (`config.mission`, `config.learning`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from pydantic import PrivateAttr, model_validator

from marl_framework.config.derived import Geometry, MissionRanges, Schedule
from marl_framework.config.errors import ConfigError
from marl_framework.config.field import RANDOM
from marl_framework.config.flying import FlyingConfig
from marl_framework.config.learning import (
    ComputeConfig,
    DistillationConfig,
    EvaluationConfig,
    LearningConfig,
    LoggingConfig,
    NetworksConfig,
    ObservationConfig,
    PredictionConfig,
)
from marl_framework.config.mission import (
    AreaConfig,
    DeploymentConfig,
    EnvironmentConfig,
    ExperimentConfig,
    MappingConfig,
    SensorConfig,
)
from marl_framework.config.named_maps import FIELD_KEY
from marl_framework.config.parts import ALGORITHMS, KEY_READERS, LEARNED
from marl_framework.config.types import Section

_ACTIONS = ("other_actions", "centred_other_actions")


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of the networks' inputs and outputs."""

    actor_channels: int
    """Number of channels of the actor's input, C_a."""
    critic_channels: int
    """Number of channels of the critic's input, C_c; those of the actor come first."""
    shape: tuple[int, int]
    """Size of the input maps, (X, Y): the lattice's, or that of `observation.window`."""
    num_actions: int
    """Number of actions, A."""
    action_channels: tuple[int, ...] = ()
    """Indices of critic channels that show actions of other agents."""
    heard: int = 0
    """Number of leading channels of both inputs with one plane per agent (`heard_uavs`)."""

    def channels(self, network: str) -> int:
        """Return the number of input channels of a network: `actor`, or one that sees all."""
        return self.actor_channels if network == "actor" else self.critic_channels


class Config(Section):
    """Complete configuration."""

    environment: EnvironmentConfig = EnvironmentConfig()
    sensor: SensorConfig = SensorConfig()
    mapping: MappingConfig = MappingConfig()
    experiment: ExperimentConfig = ExperimentConfig()
    observation: ObservationConfig = ObservationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    deployment: DeploymentConfig = DeploymentConfig()
    flying: FlyingConfig = FlyingConfig()
    networks: NetworksConfig = NetworksConfig()
    learning: LearningConfig = LearningConfig()
    prediction: PredictionConfig = PredictionConfig()
    distillation: DistillationConfig = DistillationConfig()
    compute: ComputeConfig = ComputeConfig()
    logging: LoggingConfig = LoggingConfig()
    _largest_sides: tuple[float, float] | None = PrivateAttr(None)

    @property
    def areas(self) -> tuple[Self, ...]:
        """Configurations of the areas in `environment.area`, or only this one if it is null."""
        return tuple(self._of_area(area) for area in self.environment.area or ()) or (self,)

    @property
    def largest_sides(self) -> tuple[float, float]:
        """Largest x_dim and largest y_dim [m] of the areas that this one is listed with."""
        return self._largest_sides or (self.environment.x_dim, self.environment.y_dim)

    @property
    def geometry(self) -> Geometry:
        """Lattice and map of the missions; of the first area, if there are several."""
        first = self.areas[0]
        return Geometry(first.environment, self.experiment.constraints, self.sensor)

    @property
    def missions(self) -> MissionRanges:
        """Values that missions draw from."""
        return MissionRanges(self.experiment, self.environment.field)

    @property
    def schedule(self) -> Schedule:
        """Missions and transitions of a training step."""
        missions = [area.missions for area in self.areas]
        return Schedule(missions, self.environment.num_envs, self.learning)

    @property
    def trains(self) -> bool:
        """Whether `main` trains a team (instead of flying missions)."""
        return self.experiment.policy == LEARNED and (
            self.experiment.missions.mission_mode == "training"
        )

    @property
    def network_sizes(self) -> NetworkSizes:
        """Sizes of the networks' inputs and outputs."""
        seen = self.observation.critic_channels
        heard = self.missions.most_agents if self.observation.heard_uavs else 0
        window = self.observation.window
        return NetworkSizes(
            actor_channels=heard + len(self.observation.actor_channels),
            critic_channels=heard + len(seen),
            shape=(window, window) if window else self.geometry.lattice_shape[:2],
            num_actions=self.experiment.constraints.num_actions,
            action_channels=tuple(k + heard for k, name in enumerate(seen) if name in _ACTIONS),
            heard=heard,
        )

    def one_area(self) -> Self:
        """Return the configuration of the only area; raise ConfigError if there are several."""
        first, *others = self.areas
        if others:
            raise ConfigError(
                f"environment.area lists {1 + len(others)} areas, where only one is possible; "
                "choose one with --set environment.x_dim=… --set environment.y_dim=…"
            )
        return first

    def _of_area(self, area: AreaConfig) -> Self:
        sides = {"x_dim": area.x_dim, "y_dim": area.y_dim, "area": None}
        update: dict[str, Section] = {"environment": self.environment.model_copy(update=sides)}
        if area.budget is not None:
            limits = {"budget": area.budget}
            constraints = self.experiment.constraints.model_copy(update=limits)
            experiment = {"constraints": constraints}
            update["experiment"] = self.experiment.model_copy(update=experiment)
        copy, listed = self.model_copy(update=update), self.environment.area or ()
        copy._largest_sides = max(a.x_dim for a in listed), max(a.y_dim for a in listed)
        return copy

    def listed_like(self, area: Self) -> Self:
        """Return the configuration in place of `area` among the areas that it is listed with."""
        copy = self.model_copy()
        copy._largest_sides = area._largest_sides
        return copy

    def of_mission(self, n_agents: int, budget: int) -> Self:
        """Return the configuration with a fixed team size and a fixed budget."""
        experiment = self.experiment
        missions = experiment.missions.model_copy(update={"n_agents": n_agents})
        constraints = experiment.constraints.model_copy(update={"budget": budget})
        update = {"missions": missions, "constraints": constraints}
        return self.model_copy(update={"experiment": experiment.model_copy(update=update)})

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        _check_areas(self)
        _check_random_field(self)
        _check_noise(self)
        if self.experiment.policy == "coverage":
            coverage_level(self)
        _check_learning_rates(self)
        _check_keys_of_algorithm(self)
        _check_heard(self)
        return self


def _check_heard(config: Config) -> None:
    seen = config.observation.heard_uavs
    for role in ("actor", "critic"):
        kind = getattr(config.networks, role).type
        if seen and kind == "cnn":
            raise ValueError(
                f"observation.heard_uavs: networks.{role}.type cnn supports one fixed team size; "
                "use attention, or set heard_uavs to false"
            )
        if not seen and kind == "attention":
            raise ValueError(f"networks.{role}.type attention requires observation.heard_uavs=true")


def _check_areas(config: Config) -> None:
    for number, area in enumerate(config.areas):
        try:
            _check_lattice(area)
        except ValueError as error:
            if config.environment.area is None:
                raise
            raise ValueError(f"environment.area[{number}]: {error}") from None
    if len({area.network_sizes.shape for area in config.areas}) > 1:
        raise ValueError(
            "environment.area: areas of different sizes require maps of one size; set "
            "observation.window, for example to 11"
        )


def _check_lattice(config: Config) -> None:
    x, y, _ = config.geometry.lattice_shape
    rows, cols = config.geometry.map_shape
    spacing, pixels = "experiment.constraints.spacing", "sensor.pixel.number_x and number_y"
    if x < 2 or y < 2:
        raise ValueError(
            f"{spacing} {config.experiment.constraints.spacing:g} m gives a lattice of {x} x {y} "
            "positions; at least 2 x 2 are required: raise environment.x_dim and y_dim"
        )
    if x * y > 2**14 or max(x, y) > 2**9:
        raise ValueError(
            f"a lattice of {x} x {y} positions is too large: at most {2**9} along a side and "
            f"{2**14} in all; raise {spacing}"
        )
    if x > rows or y > cols:
        raise ValueError(
            f"the lattice of {x} x {y} positions is finer than the map of {rows} x {cols} cells; "
            f"raise {pixels} or {spacing}"
        )
    if rows * cols > 2**26:
        raise ValueError(
            f"a map of {rows} x {cols} cells is too large; lower {pixels} or environment.x_dim "
            "and y_dim"
        )
    if config.missions.most_agents > x * y:
        raise ValueError(
            f"experiment.missions.n_agents {config.missions.most_agents} exceeds the "
            f"{x} x {y} = {x * y} start cells of the lattice"
        )


def _check_random_field(config: Config) -> None:
    if config.environment.field != RANDOM:
        return
    if config.experiment.constraints.no_fly_zones is not None:
        raise ValueError(
            f"{FIELD_KEY} random is not supported with experiment.constraints.no_fly_zones; set "
            "one of them to null, or use experiment.constraints.obstacles"
        )
    if config.experiment.missions.start != "random":
        raise ValueError(
            f"{FIELD_KEY} random requires experiment.missions.start random, "
            f"got {config.experiment.missions.start}"
        )


def _check_noise(config: Config) -> None:
    model = config.sensor.model
    low, high = min(model.table), max(model.table)
    for h in config.geometry.altitudes:
        if model.type == "table" and not low - 1e-9 <= h <= high + 1e-9:
            raise ValueError(
                f"sensor.model.table covers {low:g} to {high:g} m; add the altitude {h:g} m of the "
                "lattice"
            )
        noise = model.coeff_a * (1 - math.exp(-model.coeff_b * h))
        if model.type == "exponential" and not 0 < noise < 0.5:
            raise ValueError(
                f"sensor.model.coeff_a {model.coeff_a:g} and coeff_b {model.coeff_b:g} "
                f"give a noise of {noise:g} at {h:g} m; it must be between 0 and 0.5"
            )


def coverage_level(config: Config) -> int:
    """Return the lattice level of the coverage planner; the top level if UAVs cannot climb.

    Raises ConfigError if the planner's altitude is not an altitude of the lattice.
    """
    altitudes = config.geometry.altitudes
    altitude = config.experiment.baselines.coverage.altitude
    if config.experiment.constraints.num_actions in (4, 9):
        return len(altitudes) - 1
    for level, h in enumerate(altitudes):
        if abs(h - altitude) < 1e-6:
            return level
    raise ConfigError(
        f"experiment.baselines.coverage.altitude {altitude:g} m is not an altitude of the lattice; "
        f"set it to one of {', '.join(f'{h:g}' for h in altitudes[:10])}"
    )


def _check_learning_rates(config: Config) -> None:
    learning, scale = config.learning, config.schedule.learning_rate_scale
    for name, optimizer in (("actor", learning.actor), ("critic", learning.critic)):
        rate = optimizer.learning_rate * scale
        if rate > 1:
            raise ValueError(
                f"learning.lr_scaling {learning.lr_scaling} makes learning.{name}.learning_rate "
                f"{rate:.3g} for batches of {config.schedule.transitions_per_batch:,.0f} "
                "transitions; it must be at most 1: raise learning.lr_base_batch or lower the rate"
            )


def _check_keys_of_algorithm(config: Config) -> None:
    algorithm = config.experiment.algorithm
    if algorithm not in ALGORITHMS:  # custom algorithms may read any key
        return
    for key, readers in KEY_READERS.items():
        value, default = (getattr(section, key) for section in (config.learning, LearningConfig()))
        if algorithm not in readers and value != default:
            raise ValueError(
                f"learning.{key} {str(value).lower()} has no effect on {algorithm}, only on "
                f"{', '.join(readers[:-1])} and {readers[-1]}; leave it at {str(default).lower()}"
            )
