"""Sections that describe the world: area, sensor, belief, mission, team, reward."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marl_framework.config.types import (
    TERRAIN_KINDS,
    Angle,
    Count,
    DottedPath,
    Interval,
    Metres,
    MissionType,
    Noise,
    Positive,
    Probability,
    Range,
    Scale,
    Section,
    Share,
    TerrainKind,
    Text,
    Threshold,
)


class EnvironmentConfig(Section):
    """How many missions run at once, their random seed and the size of the area.

    num_envs: missions in parallel, over all ranks; x_dim, y_dim: sides of the area [m].
    """

    num_envs: Annotated[int, Field(ge=1, le=2**20)] = 5
    seed: Annotated[int, Field(ge=0, lt=2**20)] = 3
    x_dim: Metres = 50.0
    y_dim: Metres = 50.0


class FieldOfViewConfig(Section):
    """Opening angles of the camera [degrees]."""

    angle_x: Angle = 60.0
    angle_y: Angle = 60.0


class PixelConfig(Section):
    """Cells a footprint measures at the lowest altitude; it sets the cell size of the map."""

    number_x: Annotated[int, Field(ge=2, le=8192)] = 57
    number_y: Annotated[int, Field(ge=2, le=8192)] = 57


class SensorModelConfig(Section):
    """Probability that a cell is read wrongly, as a function of the altitude h [m].

    table: altitude [m] to noise, linear in between; exponential: a·(1 - e^(-b·h)) with
    coeff_a [1] and coeff_b [1/m].
    """

    type: Literal["table", "exponential"] = "table"
    table: Annotated[dict[Metres, Noise], Field(min_length=1, max_length=1000)] = Field(
        default_factory=lambda: {5.0: 0.01, 10.0: 0.265, 15.0: 0.375, 20.0: 0.43, 25.0: 0.46}
    )
    coeff_a: Positive = 0.05
    coeff_b: Positive = 0.2


class RasterConfig(Section):
    """A real map to fly over (PNG, TIFF, NPY or NPZ).

    path: the file, or `matplotlib:NAME` for sample data; key: array of an NPZ, null = its
    largest; resolution [m per pixel], null = the file's own; threshold: a value of the map,
    or a percentile of the window such as p60, above which a cell is of interest.
    """

    path: Text | None = None
    key: Text | None = None
    resolution: Metres | None = None
    threshold: Threshold = "p60"


class SimulationConfig(Section):
    """Which ground truths are drawn.

    kinds: drawn with equal odds, terrains of your own by dotted path; cluster_radius [1]:
    k^(-cluster_radius) is the power spectrum of a random field.
    """

    kinds: Annotated[tuple[TerrainKind, ...], Field(min_length=1, max_length=100)] = ("split",)
    cluster_radius: Annotated[float, Field(gt=0, le=100)] = 5.0
    raster: RasterConfig = RasterConfig()

    @property
    def drawn_kinds(self) -> tuple[str, ...]:
        """The kinds to draw from; `mixed` stands for all synthetic ones."""
        names = [
            kind
            for name in self.kinds
            for kind in (TERRAIN_KINDS[:-1] if name == "mixed" else (name,))
        ]
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _raster_has_a_path(self) -> Self:
        if "raster" in self.kinds and not self.raster.path:
            raise ValueError("kinds contains raster, but raster.path names no file")
        return self


class SensorConfig(Section):
    """The camera and what it looks at."""

    type: Literal["rgb_camera"] = "rgb_camera"
    field_of_view: FieldOfViewConfig = FieldOfViewConfig()
    pixel: PixelConfig = PixelConfig()
    model: SensorModelConfig = SensorModelConfig()
    simulation: SimulationConfig = SimulationConfig()


class MappingConfig(Section):
    """Belief before any reading."""

    prior: Probability = 0.5


class ConstraintsConfig(Section):
    """Planning lattice, mission length and action set.

    spacing, min_altitude, max_altitude [m]; budget [moves]: a mission has budget + 1.
    """

    spacing: Metres = 5.0
    min_altitude: Metres = 5.0
    max_altitude: Metres = 15.0
    budget: Annotated[int, Field(ge=1, le=1000)] = 14
    num_actions: Literal[4, 6, 9, 27] = 6

    @model_validator(mode="after")
    def _altitudes_fit(self) -> Self:
        if self.min_altitude > self.max_altitude:
            raise ValueError(
                f"min_altitude {self.min_altitude:g} is above max_altitude {self.max_altitude:g}"
            )
        steps = (self.max_altitude - self.min_altitude) / self.spacing
        if steps > 99:
            raise ValueError(
                f"spacing {self.spacing:g} gives {steps + 1:.0f} altitudes; at most 100 are flown"
            )
        if abs(steps - round(steps)) > 1e-6:
            raise ValueError(
                f"max_altitude {self.max_altitude:g} is not min_altitude {self.min_altitude:g} "
                f"plus a multiple of spacing {self.spacing:g}"
            )
        return self


class UAVConfig(Section):
    """Radio of the UAVs.

    communication_range [m], .inf = everybody hears everybody; sampled_ranges [m]: drawn for
    each mission when fix_range is false; failure_rate: share of messages that are lost.
    """

    communication_range: Range = 25.0
    fix_range: bool = True
    sampled_ranges: Annotated[tuple[Range, ...], Field(min_length=1, max_length=1000)] = (
        0.0,
        15.0,
        25.0,
        100.0,
    )
    failure_rate: Share = 0.0


class MissionsConfig(Section):
    """What is flown, by how many UAVs, and how exploration fades.

    type: COMA trains; the others, and a planner of your own by dotted path, are flown.
    n_episodes [training steps]; patience [evaluations without a better one], 0 = off;
    eps_anneal_phase [missions]: exploration falls linearly from eps_max to eps_min.
    """

    type: MissionType = "COMA"
    mission_mode: Literal["training", "deployment"] = "training"
    n_episodes: Count = 1500
    patience: Interval = 100
    n_agents: Annotated[int, Field(ge=1, le=16)] = 4
    start: Literal["random", "corners"] = "random"
    use_eps: bool = True
    eps_max: Share = 0.5
    eps_min: Share = 0.02
    eps_anneal_phase: Count = 10000

    @model_validator(mode="after")
    def _epsilon_falls(self) -> Self:
        if self.eps_min > self.eps_max:
            raise ValueError(f"eps_min {self.eps_min:g} is above eps_max {self.eps_max:g}")
        return self


class RewardConfig(Section):
    """Affine scales of the reward (relative) and of the reported absolute return.

    function: dotted path of a reward of your own, instead of the relative one.
    """

    function: DottedPath | None = None
    relative_scale: Scale = 22.0
    relative_offset: Scale = -0.5
    absolute_scale: Scale = 10.0
    absolute_offset: Scale = -0.17


class LawnmowerConfig(Section):
    """Coverage planner: number of missions and altitude [m]."""

    trials: Count = 50
    altitude: Metres = 5.0


class RandomConfig(Section):
    """Random planner: number of missions."""

    n_episodes: Count = 50


class InformationGainConfig(Section):
    """Greedy information-gain planner: number of missions, and whether UAVs talk."""

    trials: Count = 50
    communication: bool = True


class BaselinesConfig(Section):
    """Planners that need no training."""

    lawnmower: LawnmowerConfig = LawnmowerConfig()
    random: RandomConfig = RandomConfig()
    information_gain: InformationGainConfig = InformationGainConfig()


class ExperimentConfig(Section):
    """The mission: lattice, radio, team, reward."""

    title: Text = "coma"
    constraints: ConstraintsConfig = ConstraintsConfig()
    uav: UAVConfig = UAVConfig()
    missions: MissionsConfig = MissionsConfig()
    reward: RewardConfig = RewardConfig()
    baselines: BaselinesConfig = BaselinesConfig()
