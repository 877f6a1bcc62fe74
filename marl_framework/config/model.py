"""Typed configuration: one frozen model per YAML section.

Field names are the YAML keys. Every value is checked once, here; the rest of the code
trusts it. Loading and overrides live in `config.loading`, the sections in `config.mission` and
`config.learning`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from pydantic import model_validator

from marl_framework.config.errors import ConfigError
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
    DeploymentConfig,
    EnvironmentConfig,
    ExperimentConfig,
    MappingConfig,
    SensorConfig,
)
from marl_framework.config.parts import ALGORITHMS, KNOWN_TO, LEARNED
from marl_framework.config.types import Section, choices


@dataclass(frozen=True)
class NetworkSizes:
    """What a task asks of the networks."""

    actor_channels: int
    """Channels of an observation, C_a."""
    critic_channels: int
    """Channels of the critic's input, C_c: the observation's, then what only the critic sees."""
    shape: tuple[int, int]
    """Input size (X, Y)."""
    num_actions: int
    """A."""
    action_channels: tuple[int, ...] = ()
    """Those of the critic's channels that show what the other agents do, by index."""
    heard: int = 0
    """The first channels of both: one for each agent that it may hear, itself first."""


class Config(Section):
    """Everything a params file says."""

    environment: EnvironmentConfig = EnvironmentConfig()
    sensor: SensorConfig = SensorConfig()
    mapping: MappingConfig = MappingConfig()
    experiment: ExperimentConfig = ExperimentConfig()
    observation: ObservationConfig = ObservationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    deployment: DeploymentConfig = DeploymentConfig()
    networks: NetworksConfig = NetworksConfig()
    learning: LearningConfig = LearningConfig()
    prediction: PredictionConfig = PredictionConfig()
    distillation: DistillationConfig = DistillationConfig()
    compute: ComputeConfig = ComputeConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def lattice_shape(self) -> tuple[int, int, int]:
        """Number of lattice positions (X, Y, Z)."""
        c, e = self.experiment.constraints, self.environment
        return (
            math.floor(e.x_dim / c.spacing + 1e-9) + 1,
            math.floor(e.y_dim / c.spacing + 1e-9) + 1,
            round((c.max_altitude - c.min_altitude) / c.spacing) + 1,
        )

    @property
    def altitudes(self) -> tuple[float, ...]:
        """Altitudes of the lattice [m], lowest first."""
        c = self.experiment.constraints
        return tuple(c.min_altitude + k * c.spacing for k in range(self.lattice_shape[2]))

    @property
    def cell_size(self) -> tuple[float, float]:
        """Cell size of the map (res_x, res_y) [m]."""
        h, view, pixel = (
            self.experiment.constraints.min_altitude,
            self.sensor.field_of_view,
            self.sensor.pixel,
        )
        return (
            2 * h * math.tan(math.radians(view.angle_x) / 2) / pixel.number_x,
            2 * h * math.tan(math.radians(view.angle_y) / 2) / pixel.number_y,
        )

    @property
    def map_shape(self) -> tuple[int, int]:
        """Cells of the map (R, C)."""
        res_x, res_y = self.cell_size
        return (
            math.floor(self.environment.x_dim / res_x + 1e-9),
            math.floor(self.environment.y_dim / res_y + 1e-9),
        )

    @property
    def network_sizes(self) -> NetworkSizes:
        """What the mission asks of the networks."""
        seen = self.observation.critic_channels
        heard = self.most_agents if self.observation.heard_uavs else 0
        return NetworkSizes(
            actor_channels=heard + len(self.observation.actor_channels),
            critic_channels=heard + len(seen),
            shape=self.lattice_shape[:2],
            num_actions=self.experiment.constraints.num_actions,
            action_channels=tuple(
                heard + i for i, name in enumerate(seen) if name == "other_actions"
            ),
            heard=heard,
        )

    @property
    def quarter_turns(self) -> bool:
        """Whether a mission turned by a quarter is a mission: area and footprints are squares."""
        area, view, pixel = self.environment, self.sensor.field_of_view, self.sensor.pixel
        pairs = (area.x_dim, area.y_dim), (view.angle_x, view.angle_y)
        return pixel.number_x == pixel.number_y and all(x == y for x, y in pairs)

    @property
    def has_zones(self) -> bool:
        """Whether there is somewhere that UAVs must not fly."""
        limits = self.experiment.constraints
        return limits.no_fly_zones is not None or limits.obstacles.number > 0

    @property
    def team_sizes(self) -> tuple[int, ...]:
        """What missions draw their number of UAVs from."""
        return choices(self.experiment.missions.n_agents)

    @property
    def trains(self) -> bool:
        """Whether `main` trains a team, rather than fly missions."""
        return self.experiment.policy == LEARNED and (
            self.experiment.missions.mission_mode == "training"
        )

    @property
    def most_agents(self) -> int:
        """UAVs of the largest team, N."""
        return max(self.team_sizes)

    @property
    def budgets(self) -> tuple[int, ...]:
        """What missions draw their budget from."""
        return choices(self.experiment.constraints.budget)

    @property
    def has_cost(self) -> bool:
        """Whether UAVs may only fly moves that they can pay for."""
        return self.experiment.constraints.cost.limit is not None

    @property
    def cost_limits(self) -> tuple[float, ...]:
        """What UAVs draw the cost that they may spend from; infinite without a limit."""
        limit = self.experiment.constraints.cost.limit
        return (math.inf,) if limit is None else choices(limit)

    @property
    def has_crashes(self) -> bool:
        """Whether UAVs may crash."""
        return max(choices(self.experiment.uav.crash_rate)) > 0

    @property
    def drawn_keys(self) -> tuple[str, ...]:
        """Keys of which each mission draws its own value, where there is more than one."""
        experiment = self.experiment
        values = {
            "experiment.missions.n_agents": experiment.missions.n_agents,
            "experiment.constraints.budget": experiment.constraints.budget,
            "experiment.uav.communication_range": experiment.uav.communication_range,
            "experiment.uav.failure_rate": experiment.uav.failure_rate,
            "experiment.uav.crash_rate": experiment.uav.crash_rate,
        }
        return tuple(key for key, value in values.items() if len(set(choices(value))) > 1)

    def of_mission(self, n_agents: int, budget: int) -> Self:
        """Return the same for missions of one team size and one budget."""
        experiment = self.experiment
        missions = experiment.missions.model_copy(update={"n_agents": n_agents})
        constraints = experiment.constraints.model_copy(update={"budget": budget})
        update = {"missions": missions, "constraints": constraints}
        return self.model_copy(update={"experiment": experiment.model_copy(update=update)})

    @property
    def episode_length(self) -> int:
        """Moves of the longest mission, T = budget + 1."""
        return max(self.budgets) + 1

    @property
    def has_inactive(self) -> bool:
        """Whether some UAVs do not fly all the time."""
        return len(set(self.team_sizes)) > 1 or bool(self.keys_that_end_missions)

    @property
    def keys_that_end_missions(self) -> tuple[str, ...]:
        """Keys by which missions may end apart: budgets differ, moves cost, or UAVs crash."""
        ending = {
            "experiment.constraints.budget": len(set(self.budgets)) > 1,
            "experiment.constraints.cost.limit": self.has_cost,
            "experiment.uav.crash_rate": self.has_crashes,
        }
        return tuple(key for key, ends in ending.items() if ends)

    @property
    def rollouts_per_step(self) -> int:
        """Rounds of `num_envs` missions that fill the batches of a training step."""
        wanted = self.learning.batch_size * self.learning.batch_number
        return math.ceil(wanted / (self.environment.num_envs * self.transitions_per_mission))

    @property
    def transitions_per_step(self) -> int:
        """Transitions of a training step, over all ranks; their mean where missions differ."""
        missions = self.rollouts_per_step * self.environment.num_envs
        return round(missions * self.transitions_per_mission)

    @property
    def transitions_per_batch(self) -> float:
        """Transitions behind one update of the networks, over all ranks; mean of the batches."""
        collected = self.transitions_per_step
        return collected / min(self.learning.batch_number, collected)

    @property
    def learning_rate_scale(self) -> float:
        """What `learning.lr_scaling` multiplies the learning rates by.

        The batch over `lr_base_batch` (`linear`: Goyal et al. 2017, section 2.1), the root of
        that (`sqrt`, which suits Adam: Malladi et al. 2022), or 1 (`none`).
        """
        share = self.transitions_per_batch / self.learning.lr_base_batch
        return {"none": 1.0, "sqrt": math.sqrt(share), "linear": share}[self.learning.lr_scaling]

    @property
    def transitions_per_mission(self) -> Fraction:
        """Moves of all UAVs of a mission; their mean where missions differ.

        As if all were affordable, and nobody crashed.
        """
        sizes, budgets = self.team_sizes, self.budgets
        return Fraction(sum(sizes), len(sizes)) * (Fraction(sum(budgets), len(budgets)) + 1)

    @property
    def places_per_step(self) -> int:
        """Transitions of a training step if all UAVs flew in all of the longest missions."""
        missions = self.rollouts_per_step * self.environment.num_envs
        return missions * self.most_agents * self.episode_length

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        _check_lattice(self)
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
                f"observation.heard_uavs: networks.{role}.type cnn knows no team of any size; "
                "use attention there, or switch heard_uavs off"
            )
        if not seen and kind == "attention":
            raise ValueError(
                f"networks.{role}.type attention attends to the UAVs that it hears; set "
                "observation.heard_uavs=true"
            )


def _check_lattice(config: Config) -> None:
    x, y, _ = config.lattice_shape
    rows, cols = config.map_shape
    if x < 2 or y < 2:
        raise ValueError(
            f"experiment.constraints.spacing {config.experiment.constraints.spacing:g} m leaves "
            f"a lattice of {x} x {y} positions; environment.x_dim and y_dim must hold 2 x 2"
        )
    if x * y > 2**14:
        raise ValueError(
            f"a lattice of {x} x {y} positions is too large; raise experiment.constraints.spacing"
        )
    if x > rows or y > cols:
        raise ValueError(
            f"the lattice of {x} x {y} positions is finer than the map of {rows} x {cols} "
            f"cells; raise sensor.pixel.number_x and number_y or experiment.constraints.spacing"
        )
    if rows * cols > 2**26:
        raise ValueError(
            f"a map of {rows} x {cols} cells is too large; lower sensor.pixel.number_x and "
            f"number_y or environment.x_dim and y_dim"
        )
    if config.most_agents > x * y:
        raise ValueError(
            f"experiment.missions.n_agents {config.most_agents} exceeds the "
            f"{x} x {y} = {x * y} start cells of the lattice"
        )


def _check_noise(config: Config) -> None:
    model = config.sensor.model
    low, high = min(model.table), max(model.table)
    for h in config.altitudes:
        if model.type == "table" and not low - 1e-9 <= h <= high + 1e-9:
            raise ValueError(
                f"sensor.model.table covers {low:g} to {high:g} m, not the altitude "
                f"{h:g} m that experiment.constraints asks for; add that altitude"
            )
        noise = model.coeff_a * (1 - math.exp(-model.coeff_b * h))
        if model.type == "exponential" and not 0 < noise < 0.5:
            raise ValueError(
                f"sensor.model.coeff_a {model.coeff_a:g} and coeff_b {model.coeff_b:g} "
                f"give a noise of {noise:g} at {h:g} m; it must lie between 0 and 0.5"
            )


def coverage_level(config: Config) -> int:
    """Return the level of the lattice at which `coverage` flies: its altitude's if UAVs can climb.

    Raises:
        ConfigError: the lattice does not have the altitude.
    """
    altitude = config.experiment.baselines.coverage.altitude
    if config.experiment.constraints.num_actions in (4, 9):
        return len(config.altitudes) - 1
    for level, h in enumerate(config.altitudes):
        if abs(h - altitude) < 1e-6:
            return level
    listed = ", ".join(f"{h:g}" for h in config.altitudes[:10])
    raise ConfigError(
        f"experiment.baselines.coverage.altitude {altitude:g} m is not one of the lattice's "
        f"altitudes; set it to one of {listed}"
    )


def _check_learning_rates(config: Config) -> None:
    learning, scale = config.learning, config.learning_rate_scale
    for name, rate in (
        ("actor", learning.actor.learning_rate),
        ("critic", learning.critic.learning_rate),
    ):
        if rate * scale > 1:
            raise ValueError(
                f"learning.lr_scaling {learning.lr_scaling} makes learning.{name}.learning_rate "
                f"{rate * scale:.3g} for batches of {config.transitions_per_batch:,.0f} "
                "transitions; it must be at most 1: raise learning.lr_base_batch or lower the rate"
            )


def _check_keys_of_algorithm(config: Config) -> None:
    algorithm = config.experiment.algorithm
    if algorithm not in ALGORITHMS:  # only its author knows what it reads
        return
    for key, known_to in KNOWN_TO.items():
        value, usual = (getattr(section, key) for section in (config.learning, LearningConfig()))
        if algorithm not in known_to and value != usual:
            raise ValueError(
                f"learning.{key} {str(value).lower()}: {algorithm} does not know it, only "
                f"{' and '.join(known_to)} do; leave it at {str(usual).lower()}"
            )
