"""Sections that describe the world: area, sensor, belief, team, planners, reward, deployment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marl_framework.config import types
from marl_framework.config.parts import TERRAINS

MOST_AGENTS = 16
"""Largest possible number of UAVs."""
_MIXED = tuple(name for name in TERRAINS if name not in ("raster", "landscape"))


class EnvironmentConfig(types.Section):
    """Number of parallel missions, random seed and size of the area."""

    num_envs: Annotated[int, Field(ge=1, le=2**20)] = 5
    """Number of parallel missions, over all ranks."""
    seed: Annotated[int, Field(ge=0, lt=2**20)] = 3
    """Seed of all random numbers."""
    x_dim: types.Metres = 50.0
    """Side of the area along x [m]."""
    y_dim: types.Metres = 50.0
    """Side of the area along y [m]."""


class FieldOfViewConfig(types.Section):
    """Opening angles of the camera [degrees]."""

    angle_x: types.Angle = 60.0
    angle_y: types.Angle = 60.0


class PixelConfig(types.Section):
    """Cells of a footprint at the lowest altitude; they set the cell size of the map."""

    number_x: Annotated[int, Field(ge=2, le=8192)] = 57
    number_y: Annotated[int, Field(ge=2, le=8192)] = 57


class SensorModelConfig(types.Section):
    """Probability of a wrong reading of a cell, as a function of the altitude h [m]."""

    type: types.SensorType = "table"
    """table, exponential, or dotted path of a custom sensor (see `mission.sensor`)."""
    table: Annotated[dict[types.Metres, types.Noise], Field(min_length=1, max_length=1000)] = Field(
        default_factory=lambda: {5.0: 0.01, 10.0: 0.265, 15.0: 0.375, 20.0: 0.43, 25.0: 0.46}
    )
    """Probabilities of a wrong reading by altitude [m], linear in between."""
    coeff_a: types.Positive = 0.05
    """Coefficient a of the exponential model a·(1 - e^(-b·h))."""
    coeff_b: types.Positive = 0.2
    """Coefficient b of the exponential model [1/m]."""


class RasterConfig(types.Section):
    """A real map to fly over (PNG, TIFF, GeoTIFF, NPY or NPZ)."""

    path: types.Text | None = None
    """Name of the file, or `matplotlib:NAME` for sample data."""
    key: types.Key | None = None
    """Array of an NPZ (null = its largest), or band of a GeoTIFF, by description or number."""
    resolution: types.Metres | None = None
    """Metres per pixel; null = those of the file."""
    threshold: types.Threshold = "p60"
    """Value, or percentile of the window such as p60, above which cells are of interest."""


class SimulationConfig(types.Section):
    """Kinds of ground truths."""

    kinds: types.TerrainKinds = ("split",)
    """Kinds to draw from with equal odds; custom terrains by dotted path."""
    cluster_radius: Annotated[float, Field(gt=0, le=100)] = 5.0
    """Exponent of the power spectrum k^(-cluster_radius) of a random field."""
    raster: RasterConfig = RasterConfig()

    @property
    def drawn_kinds(self) -> tuple[str, ...]:
        """Kinds to draw from; `mixed` stands for all synthetic ones except landscape."""
        names = [kind for name in self.kinds for kind in (_MIXED if name == "mixed" else (name,))]
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _raster_has_a_path(self) -> Self:
        if "raster" in self.kinds and not self.raster.path:
            raise ValueError("kinds contains raster; name its file in raster.path")
        return self


class SensorConfig(types.Section):
    """Camera and ground truth."""

    field_of_view: FieldOfViewConfig = FieldOfViewConfig()
    pixel: PixelConfig = PixelConfig()
    model: SensorModelConfig = SensorModelConfig()
    simulation: SimulationConfig = SimulationConfig()


class MappingConfig(types.Section):
    """Belief before any reading."""

    prior: types.Probability = 0.5
    """Probability of ROI. The published update subtracts its odds for every reading, which is
    Bayes' rule only with 0.5."""


class ObstaclesConfig(types.Section):
    """Boxes on the ground, drawn for every mission; no UAV flies through them."""

    number: Annotated[int, Field(ge=0, le=16)] = 0
    """Number of boxes to draw; those within spacing of a start are left out."""
    side: tuple[types.Metres, types.Metres] = (5.0, 15.0)
    """Least and largest side along x and y [m]."""
    height: tuple[types.Metres, types.Metres] = (10.0, 20.0)
    """Least and largest height [m]."""

    @model_validator(mode="after")
    def _least_comes_first(self) -> Self:
        for name in ("side", "height"):
            least, largest = getattr(self, name)
            if least > largest:
                raise ValueError(f"{name} [{least:g}, {largest:g}] must have the least value first")
        return self


class CostConfig(types.Section):
    """Costs of moves, in metres, seconds or any other unit, and a UAV's limit."""

    limit: types.Drawn[types.Positive] | None = None
    """Cost limit of a UAV; null = only moves count; a list: each UAV draws one of its values."""
    horizontal: types.NonNegative = 1.0
    """Cost of a metre along x and y."""
    climb: types.NonNegative = 1.0
    """Cost of a metre up."""
    descent: types.NonNegative = 1.0
    """Cost of a metre down."""
    reading: types.NonNegative = 0.0
    """Cost of the reading at the end of each move."""


class ConstraintsConfig(types.Section):
    """Planning lattice, mission length, action set, costs, no-fly zones and obstacles."""

    spacing: types.Metres = 5.0
    """Distance between lattice positions [m]."""
    min_altitude: types.Metres = 5.0
    """Lowest altitude [m]."""
    max_altitude: types.Metres = 15.0
    """Highest altitude [m], min_altitude plus a multiple of spacing."""
    budget: types.Drawn[Annotated[int, Field(ge=1, le=1000)]] = 14
    """Budget of a mission, which has budget + 1 moves; a list: each mission draws one value."""
    num_actions: Literal[4, 6, 9, 27] = 6
    """Number of moves to choose from (see `mission.lattice.action_offsets`)."""
    cost: CostConfig = CostConfig()
    no_fly_zones: types.Text | None = None
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
                f"spacing {self.spacing:g} gives {steps + 1:.0f} altitudes; at most 100 are allowed"
            )
        if abs(steps - round(steps)) > 1e-6:
            raise ValueError(
                f"max_altitude {self.max_altitude:g} is not min_altitude {self.min_altitude:g} "
                f"plus a multiple of spacing {self.spacing:g}"
            )
        return self


class UAVConfig(types.Section):
    """Radio and crashes of the UAVs; of a list each mission draws one value."""

    communication_range: types.Drawn[types.Range] = 25.0
    """Largest distance of UAVs that hear each other [m], .inf = no limit."""
    failure_rate: types.Drawn[types.Share] = 0.0
    """Share of messages that are lost."""
    crash_rate: types.Drawn[types.Share] = 0.0
    """Share of the UAVs that crash after each move."""


class MissionsConfig(types.Section):
    """Purpose, team size and starts of missions."""

    mission_mode: Literal["training", "deployment"] = "training"
    """Purpose; deployment flies windows of a whole raster with a trained team or a planner."""
    n_agents: types.Drawn[Annotated[int, Field(ge=1, le=MOST_AGENTS)]] = 4
    """Number of UAVs of a mission; a list: each mission draws one of its values."""
    start: Literal["random", "corners", "published"] = "random"
    """Starts, at the highest altitude: distinct random cells, corners, or as in the published
    code: UAV 0 in the middle of the edge y = 0, the others anywhere, even on one cell."""


class RewardConfig(types.Section):
    """Affine scales of the reward (relative) and of the reported absolute return."""

    function: types.DottedPath | None = None
    """Dotted path of a custom reward that replaces the relative one."""
    relative_scale: types.Scale = 22.0
    """Scale of the reward, relative_scale · relative gain + relative_offset."""
    relative_offset: types.Scale = -0.5
    """Offset of the reward."""
    outside_weight: types.Share = 0.0
    """Weight of entropy outside the ROI in the relative gain; inside it is 1."""
    f1_scale: types.Scale = 0.0
    """Scale of a term of the reward: the gain in F1 of the belief of all readings."""
    absolute_scale: types.Scale = 10.0
    """Scale of the reported return, the sum of absolute_scale · absolute gain + absolute_offset."""
    absolute_offset: types.Scale = -0.17
    """Offset of each term of the reported return."""


class PlannerConfig(types.Section):
    """A planner that flies instead of the trained team."""

    missions: types.Count = 50
    """Number of missions."""


class CoverageConfig(PlannerConfig):
    """The coverage planner."""

    altitude: types.Metres = 5.0
    """Altitude of its lanes [m], one of the lattice's."""


class InformationGainConfig(PlannerConfig):
    """The greedy information-gain planner."""

    communication: bool = True
    """Whether UAVs know the next footprints of the others."""


class SearchConfig(PlannerConfig):
    """The search planner, which plans on a predicted map."""

    predictor: types.Predictor = types.PRETRAINED_PREDICTOR
    """Trained predictor: run folder, checkpoint file, or the library's."""
    outside_weight: types.Share = 0.0
    """Weight of the entropy expected outside the ROI; it improves F1."""
    plan_memory: types.Share = 0.9
    """Weight of a plan one move after it was heard; 0 = only plans of this move count."""
    presumed_share: types.Share = 0.7
    """Share of a sector's entropy that its UAV is assumed to remove while its plan is unknown."""
    presumed_beside_plan: types.Share = 0.0
    """Share of that which it is assumed to remove in addition to a plan just heard."""
    method: Literal["beam", "tree"] = "beam"
    """Search: the best paths of each length, or a tree that grows where they are good."""
    beams: Annotated[int, Field(ge=1, le=4096)] = 24
    """Number of paths that the beam search keeps."""
    simulations: Annotated[int, Field(ge=1, le=2**16)] = 256
    """Number of flights that the tree search tries for each move."""
    depth: Annotated[int, Field(ge=1, le=1000)] = 16
    """Number of moves that its tree looks ahead; greedy flights continue from there."""
    leaves: Annotated[int, Field(ge=1, le=1024)] = 16
    """Number of simulations of one tree made at once."""
    prior: types.Text | None = None
    """Trained team whose policy is the tree's prior of the first action: run or checkpoint."""


class BaselinesConfig(types.Section):
    """Planners that can fly instead of the trained team."""

    coverage: CoverageConfig = CoverageConfig()
    random: PlannerConfig = PlannerConfig()
    information_gain: InformationGainConfig = InformationGainConfig()
    search: SearchConfig = SearchConfig()


class ExperimentConfig(types.Section):
    """Algorithm, policy and mission: lattice, radio, team, reward."""

    title: types.Text = "coma"
    """Name of the run."""
    algorithm: types.Algorithm = "coma"
    """Training algorithm: coma, iac, central_v, ippo, mappo, or dotted path of a custom one."""
    policy: types.Policy = "learned"
    """Policy: learned trains a team; a planner's name, or its dotted path, flies that planner."""
    constraints: ConstraintsConfig = ConstraintsConfig()
    uav: UAVConfig = UAVConfig()
    missions: MissionsConfig = MissionsConfig()
    reward: RewardConfig = RewardConfig()
    baselines: BaselinesConfig = BaselinesConfig()


class DeploymentConfig(types.Section):
    """Location of a deployment on Earth, and settings of its mission files."""

    origin: types.Point | None = None
    """(latitude, longitude) of the map's lower left corner [degrees]; null = that of its file."""
    home: types.Point | None = None
    """(latitude, longitude) of UAV 1's take-off, the others' lie east of it [degrees]; null =
    lower left corner of the window."""
    altitudes: Literal["ground", "home"] = "ground"
    """Zero of the altitudes in mission files: the ground below, which needs an autopilot that
    follows terrain, or the place of take-off."""
    speed: Annotated[float, Field(ge=0.1, le=50)] = 3.0
    """Speed of the UAVs in mission files [m/s]."""
    separation: Annotated[float, Field(ge=1, le=100)] = 5.0
    """Distance of UAVs at home, and of their altitudes on the way to their starts and back [m]."""
