"""Sections that describe the world: area, sensor, belief, team, planners, reward, deployment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marl_framework.config.parts import TERRAINS
from marl_framework.config.types import (
    PRETRAINED_PREDICTOR,
    Algorithm,
    Angle,
    Count,
    DottedPath,
    Drawn,
    Key,
    Metres,
    Noise,
    NonNegative,
    Point,
    Policy,
    Positive,
    Predictor,
    Probability,
    Range,
    Scale,
    Section,
    SensorType,
    Share,
    TerrainKind,
    Text,
    Threshold,
)

MOST_AGENTS = 16
"""UAVs of the largest team that there can be."""
_MIXED = tuple(name for name in TERRAINS if name not in ("raster", "landscape"))


class EnvironmentConfig(Section):
    """How many missions run at once, their random seed and the size of the area."""

    num_envs: Annotated[int, Field(ge=1, le=2**20)] = 5
    """Missions in parallel, over all ranks."""
    seed: Annotated[int, Field(ge=0, lt=2**20)] = 3
    """Of every random number."""
    x_dim: Metres = 50.0
    """Side of the area along x [m]."""
    y_dim: Metres = 50.0
    """Side of the area along y [m]."""


class FieldOfViewConfig(Section):
    """Opening angles of the camera [degrees]."""

    angle_x: Angle = 60.0
    angle_y: Angle = 60.0


class PixelConfig(Section):
    """Cells a footprint measures at the lowest altitude; it sets the cell size of the map."""

    number_x: Annotated[int, Field(ge=2, le=8192)] = 57
    number_y: Annotated[int, Field(ge=2, le=8192)] = 57


class SensorModelConfig(Section):
    """How often a cell is read wrongly, as a function of the altitude h [m]."""

    type: SensorType = "table"
    """table, exponential, or the dotted path of your own sensor (see `mission.sensor`)."""
    table: Annotated[dict[Metres, Noise], Field(min_length=1, max_length=1000)] = Field(
        default_factory=lambda: {5.0: 0.01, 10.0: 0.265, 15.0: 0.375, 20.0: 0.43, 25.0: 0.46}
    )
    """Altitude [m] to probability of a wrong reading, linear in between."""
    coeff_a: Positive = 0.05
    """a of the exponential model a·(1 - e^(-b·h))."""
    coeff_b: Positive = 0.2
    """b of the exponential model [1/m]."""


class RasterConfig(Section):
    """A real map to fly over (PNG, TIFF, GeoTIFF, NPY or NPZ)."""

    path: Text | None = None
    """The file, or `matplotlib:NAME` for sample data."""
    key: Key | None = None
    """Array of an NPZ (null = its largest), or band of a GeoTIFF, by description or number."""
    resolution: Metres | None = None
    """Metres per pixel; null = what the file says."""
    threshold: Threshold = "p60"
    """A value of the map, or a percentile of the window such as p60; cells above it are of
    interest."""


class SimulationConfig(Section):
    """Which ground truths are drawn."""

    kinds: Annotated[tuple[TerrainKind, ...], Field(min_length=1, max_length=100)] = ("split",)
    """Drawn with equal odds; terrains of your own by dotted path."""
    cluster_radius: Annotated[float, Field(gt=0, le=100)] = 5.0
    """k^(-cluster_radius) is the power spectrum of a random field."""
    raster: RasterConfig = RasterConfig()

    @property
    def drawn_kinds(self) -> tuple[str, ...]:
        """The kinds to draw from; `mixed` stands for all synthetic ones but landscape."""
        names = [kind for name in self.kinds for kind in (_MIXED if name == "mixed" else (name,))]
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _raster_has_a_path(self) -> Self:
        if "raster" in self.kinds and not self.raster.path:
            raise ValueError("kinds contains raster, but raster.path names no file")
        return self


class SensorConfig(Section):
    """The camera and what it looks at."""

    field_of_view: FieldOfViewConfig = FieldOfViewConfig()
    pixel: PixelConfig = PixelConfig()
    model: SensorModelConfig = SensorModelConfig()
    simulation: SimulationConfig = SimulationConfig()


class MappingConfig(Section):
    """Belief before any reading."""

    prior: Probability = 0.5
    """The published update subtracts it for every reading, as if the reading's odds held it, too:
    the rule of Bayes with 0.5 alone."""


class ObstaclesConfig(Section):
    """Boxes on the ground that every mission draws anew; no UAV flies through them."""

    number: Annotated[int, Field(ge=0, le=16)] = 0
    """Boxes drawn; one within spacing of a start is left out."""
    side: tuple[Metres, Metres] = (5.0, 15.0)
    """Least and largest side along x and y [m]."""
    height: tuple[Metres, Metres] = (10.0, 20.0)
    """Least and largest height [m]."""

    @model_validator(mode="after")
    def _least_comes_first(self) -> Self:
        for name in ("side", "height"):
            least, largest = getattr(self, name)
            if least > largest:
                raise ValueError(f"{name} [{least:g}, {largest:g}]: the least value comes first")
        return self


class CostConfig(Section):
    """What moves cost a UAV, in metres, seconds or any other unit, and how much it may spend."""

    limit: Drawn[Positive] | None = None
    """What a UAV may spend; null = moves alone count; a list: each UAV draws its own from it."""
    horizontal: NonNegative = 1.0
    """Of a metre along x and y."""
    climb: NonNegative = 1.0
    """Of a metre up."""
    descent: NonNegative = 1.0
    """Of a metre down."""
    reading: NonNegative = 0.0
    """Of the reading at the end of each move."""


class ConstraintsConfig(Section):
    """Planning lattice, mission length, action set, what moves cost, and where nobody flies."""

    spacing: Metres = 5.0
    """Between lattice positions [m]."""
    min_altitude: Metres = 5.0
    """Lowest altitude [m]."""
    max_altitude: Metres = 15.0
    """Highest altitude [m], min_altitude plus a multiple of spacing."""
    budget: Drawn[Annotated[int, Field(ge=1, le=1000)]] = 14
    """A mission has budget + 1 moves; a list: each mission draws its budget from it."""
    num_actions: Literal[4, 6, 9, 27] = 6
    """Moves to choose from (see `mission.lattice.action_offsets`)."""
    cost: CostConfig = CostConfig()
    no_fly_zones: Text | None = None
    """GeoJSON file of polygons that no UAV enters (see `mission.no_fly_zones`)."""
    obstacles: ObstaclesConfig = ObstaclesConfig()

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
    """Radio of the UAVs, and how often one crashes."""

    communication_range: Drawn[Range] = 25.0
    """UAVs hear each other up to here [m], .inf = always; a list: each mission draws its range
    from it."""
    failure_rate: Drawn[Share] = 0.0
    """Share of messages that are lost; a list: each mission draws its own from it."""
    crash_rate: Drawn[Share] = 0.0
    """Share of the UAVs that crash after each move; a list: each mission draws its own from it."""


class MissionsConfig(Section):
    """What a mission is: who flies, from where, and what for."""

    mission_mode: Literal["training", "deployment"] = "training"
    """deployment flies windows of a whole raster with a trained team or a planner."""
    n_agents: Drawn[Annotated[int, Field(ge=1, le=MOST_AGENTS)]] = 4
    """UAVs of a mission; a list: each mission draws the size of its team from it."""
    start: Literal["random", "corners", "published"] = "random"
    """Where UAVs start, at the highest altitude: distinct random cells, corners, or as in the
    published code: UAV 0 in the middle of the edge y = 0, the others anywhere, even on one cell."""


class RewardConfig(Section):
    """Affine scales of the reward (relative) and of the reported absolute return."""

    function: DottedPath | None = None
    """Dotted path of a reward of your own, instead of the relative one."""
    relative_scale: Scale = 22.0
    """Reward = relative_scale · relative gain + relative_offset."""
    relative_offset: Scale = -0.5
    outside_weight: Share = 0.0
    """Of entropy outside the region of interest in the relative gain; inside it is 1."""
    f1_scale: Scale = 0.0
    """Added to the reward: f1_scale · gain in F1 of the belief from all readings."""
    absolute_scale: Scale = 10.0
    """Reported return = sum of absolute_scale · absolute gain + absolute_offset."""
    absolute_offset: Scale = -0.17


class CoverageConfig(Section):
    """The coverage planner."""

    missions: Count = 50
    """Missions to fly."""
    altitude: Metres = 5.0
    """Of its lanes [m], one of the lattice's."""


class RandomConfig(Section):
    """The random planner."""

    missions: Count = 50
    """Missions to fly."""


class InformationGainConfig(Section):
    """The greedy information-gain planner."""

    missions: Count = 50
    """Missions to fly."""
    communication: bool = True
    """False: UAVs do not know what the others are about to see."""


class SearchConfig(Section):
    """The search planner, which searches on a predicted map."""

    missions: Count = 50
    """Missions to fly."""
    predictor: Predictor = PRETRAINED_PREDICTOR
    """The trained predictor: its run folder, a checkpoint file, or the one of the library."""
    outside_weight: Share = 0.0
    """Weight of the entropy expected outside the region of interest; it counts for F1."""
    plan_memory: Share = 0.9
    """How much of a plan still counts one move after it was heard; 0 = plans of this move alone."""
    presumed_share: Share = 0.7
    """Of the entropy of its sector, what a UAV is presumed to remove while no plan of it counts."""
    presumed_beside_plan: Share = 0.0
    """How much of that it is presumed to remove besides a plan just heard."""
    method: Literal["beam", "tree"] = "beam"
    """How it searches: the best paths of each length, or a tree that grows where they are good."""
    beams: Annotated[int, Field(ge=1, le=4096)] = 24
    """Paths that the beam search keeps."""
    simulations: Annotated[int, Field(ge=1, le=2**16)] = 256
    """Flights that the tree search tries for each move."""
    depth: Annotated[int, Field(ge=1, le=1000)] = 16
    """Moves that its tree looks ahead; greedy flights go on from there."""
    leaves: Annotated[int, Field(ge=1, le=1024)] = 16
    """Simulations of one tree made at once."""
    prior: Text | None = None
    """A trained team whose policy is the tree's prior of the first action: its run folder or a
    checkpoint file."""


class BaselinesConfig(Section):
    """Planners besides the trained team."""

    coverage: CoverageConfig = CoverageConfig()
    random: RandomConfig = RandomConfig()
    information_gain: InformationGainConfig = InformationGainConfig()
    search: SearchConfig = SearchConfig()


class ExperimentConfig(Section):
    """Who flies and learns, and the mission: lattice, radio, team, reward."""

    title: Text = "coma"
    """Name of the run."""
    algorithm: Algorithm = "coma"
    """What trains the team: coma, iac, central_v, ippo, mappo, or the dotted path of your own."""
    policy: Policy = "learned"
    """Who flies: learned trains a team; a planner's name, or the dotted path of your own, flies
    that planner instead."""
    constraints: ConstraintsConfig = ConstraintsConfig()
    uav: UAVConfig = UAVConfig()
    missions: MissionsConfig = MissionsConfig()
    reward: RewardConfig = RewardConfig()
    baselines: BaselinesConfig = BaselinesConfig()


class DeploymentConfig(Section):
    """Where a deployment lies on Earth, and what its mission files say."""

    origin: Point | None = None
    """(latitude, longitude) of the map's lower left corner, north up [degrees]; null = what its
    file says."""
    home: Point | None = None
    """(latitude, longitude) where UAV 1 takes off, the others east of it [degrees]; null = lower
    left corner of the window."""
    altitudes: Literal["ground", "home"] = "ground"
    """What altitudes of mission files count from: the ground below, which needs an autopilot that
    follows terrain, or the place of take-off."""
    speed: Annotated[float, Field(ge=0.1, le=50)] = 3.0
    """Of the UAVs in mission files [m/s]."""
    separation: Annotated[float, Field(ge=1, le=100)] = 5.0
    """Between UAVs at home, and between their altitudes on the way to their starts and back
    [m]."""
