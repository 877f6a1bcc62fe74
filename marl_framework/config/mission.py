"""Sections that describe the world: area, sensor, belief, team, planners, reward, deployment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marl_framework.config import types
from marl_framework.config.field import RANDOM
from marl_framework.config.parts import TERRAINS

MOST_AGENTS = 128
"""Largest possible number of UAVs. Messages, `MissionState.heard`, and the plans that the search
planner holds grow with its square: plans take 1.7 GB for each mission of 128 UAVs on a lattice of
160 x 160 positions. Flights allow fewer, see `flying.messages.MOST_UAVS`."""
_MIXED = tuple(name for name in TERRAINS if name not in ("raster", "landscape"))


Budget = types.Drawn[Annotated[int, Field(ge=1, le=1000)]]


class AreaConfig(types.Section):
    """Size of one of several areas."""

    x_dim: types.Metres
    """Side of the area along x [m]."""
    y_dim: types.Metres
    """Side of the area along y [m]."""
    budget: Budget | None = None
    """Budget of missions in this area; null = experiment.constraints.budget."""


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
    area: Annotated[tuple[AreaConfig, ...], Field(min_length=1, max_length=100)] | None = None
    """Areas that rollouts draw from, instead of x_dim and y_dim; null = one area."""
    field: types.Text | None = None
    """GeoJSON file of the part of the area to map, whose extent replaces x_dim, y_dim and
    `deployment.origin`; `random` = each mission draws a polygon; null = the whole area."""

    @property
    def field_file(self) -> str | None:
        """File of the field; None if missions draw a field each, or map the whole area."""
        return None if self.field == RANDOM else self.field


class FieldOfViewConfig(types.Section):
    """Opening angles of the camera [degrees]."""

    angle_x: types.Angle = 60.0
    angle_y: types.Angle = 60.0


class PixelConfig(types.Section):
    """Number of map cells in a footprint at the lowest altitude; determines the cell size."""

    number_x: Annotated[int, Field(ge=2, le=8192)] = 57
    number_y: Annotated[int, Field(ge=2, le=8192)] = 57


class SensorModelConfig(types.Section):
    """Probability that a cell is read wrongly, as a function of the altitude h [m]."""

    type: types.SensorType = "table"
    """table, exponential, or dotted path of a custom sensor (see `mission.sensor`)."""
    table: Annotated[dict[types.Metres, types.Noise], Field(min_length=1, max_length=1000)] = Field(
        default_factory=lambda: {5.0: 0.01, 10.0: 0.265, 15.0: 0.375, 20.0: 0.43, 25.0: 0.46}
    )
    """Probability of a wrong reading by altitude [m]; linear interpolation in between."""
    coeff_a: types.Positive = 0.05
    """Coefficient a of the exponential model a·(1 - e^(-b·h))."""
    coeff_b: types.Positive = 0.2
    """Coefficient b of the exponential model [1/m]."""
    adapt: bool = False
    """Whether each UAV learns from its readings how often its camera errs; see
    `mission.camera_noise`. Its readings then count as with the `mapping.caution` so learned."""


class RasterConfig(types.Section):
    """Real map to fly over (PNG, TIFF, GeoTIFF, NPY or NPZ)."""

    path: types.Text | None = None
    """File name, `data:NAME` for a named map, or `matplotlib:NAME` for sample data."""
    key: types.Key | None = None
    """Array of an NPZ (null = the largest), or band of a GeoTIFF, by description or number."""
    resolution: types.Metres | None = None
    """Pixel size [m]; null = as in the file."""
    threshold: types.Threshold = "p60"
    """Value above which cells are of interest, or percentile of the window such as p60."""
    whole: bool = False
    """Whether all missions fly windows of the whole map; false = training, validation and test have
    separate parts."""


class SimulationConfig(types.Section):
    """Terrains of the ground truth."""

    kinds: types.TerrainKinds = ("split",)
    """Terrains that missions draw from uniformly; custom terrains by dotted path."""
    cluster_radius: Annotated[float, Field(gt=0, le=100)] = 5.0
    """Exponent of the power spectrum k^(-cluster_radius) of a random field."""
    raster: RasterConfig = RasterConfig()

    @property
    def drawn_kinds(self) -> tuple[str, ...]:
        """Terrains to draw from; `mixed` is replaced by all synthetic terrains except landscape."""
        names = [kind for name in self.kinds for kind in (_MIXED if name == "mixed" else (name,))]
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _raster_has_a_path(self) -> Self:
        if "raster" in self.kinds and not self.raster.path:
            raise ValueError("kinds contains raster; name its file in raster.path")
        return self


class SensorRealityConfig(types.Section):
    """Difference between the camera and `sensor.model`, which UAVs assume.

    From a list or range, each mission draws one value.
    """

    factor: types.Spread[types.Factor] = 1.0
    """Factor of both error rates."""
    miss: types.Spread[types.Addition] = 0.0
    """Addition to the probability of reading a cell of interest as negative."""
    false_alarm: types.Spread[types.Addition] = 0.0
    """Addition to the probability of reading any other cell as positive."""
    lost_frames: types.Spread[types.Share] = 0.0
    """Share of frames that give no reading."""


class SensorConfig(types.Section):
    """Camera and ground truth."""

    field_of_view: FieldOfViewConfig = FieldOfViewConfig()
    pixel: PixelConfig = PixelConfig()
    model: SensorModelConfig = SensorModelConfig()
    reality: SensorRealityConfig = SensorRealityConfig()
    simulation: SimulationConfig = SimulationConfig()


class MappingConfig(types.Section):
    """Belief before the first reading."""

    prior: types.Probability = 0.5
    """Prior probability of ROI. The published update subtracts the prior's odds for each reading,
    which is Bayes' rule only for 0.5."""
    caution: Annotated[float, Field(ge=1e-9, le=1)] = 1.0
    """Exponent of the odds of each reading, as a worse camera would have them; 1 trusts
    `sensor.model`."""


class ObstaclesConfig(types.Section):
    """Random boxes on the ground, drawn for every mission; UAVs cannot fly through boxes."""

    number: Annotated[int, Field(ge=0, le=16)] = 0
    """Number of boxes to draw; boxes closer than spacing to a start are omitted."""
    side: tuple[types.Metres, types.Metres] = (5.0, 15.0)
    """Smallest and largest side length along x and y [m]."""
    height: tuple[types.Metres, types.Metres] = (10.0, 20.0)
    """Smallest and largest height [m]."""

    @model_validator(mode="after")
    def _least_comes_first(self) -> Self:
        for name in ("side", "height"):
            least, largest = getattr(self, name)
            if least > largest:
                raise ValueError(
                    f"{name} [{least:g}, {largest:g}] must have the smaller value first"
                )
        return self


class CostConfig(types.Section):
    """Costs of moves, in metres, seconds or any other unit, and the limit per UAV."""

    limit: types.Drawn[types.Positive] | None = None
    """Cost limit of a UAV; null = no limit; from a list, each UAV draws one value."""
    horizontal: types.NonNegative = 1.0
    """Cost per metre along x and y."""
    climb: types.NonNegative = 1.0
    """Cost per metre up."""
    descent: types.NonNegative = 1.0
    """Cost per metre down."""
    reading: types.NonNegative = 0.0
    """Cost of the reading at the end of each move."""
    wind: types.Spread[types.Wind] = 0.0
    """Wind speed as a share of the airspeed; each mission draws a direction. Changes the
    horizontal cost of a move in proportion to its duration."""


class ConstraintsConfig(types.Section):
    """Planning lattice, mission length, action set, costs, no-fly zones and obstacles."""

    spacing: types.Metres = 5.0
    """Distance between lattice positions [m]."""
    min_altitude: types.Metres = 5.0
    """Lowest altitude [m]."""
    max_altitude: types.Metres = 15.0
    """Highest altitude [m]; must be min_altitude plus a multiple of spacing."""
    budget: Budget = 14
    """Budget; a mission has budget + 1 moves; from a list, each mission draws one value."""
    num_actions: Literal[4, 6, 9, 27] = 6
    """Number of actions (see `mission.lattice.action_offsets`)."""
    cost: CostConfig = CostConfig()
    no_fly_zones: types.Text | None = None
    """GeoJSON file of polygons that UAVs must not enter (see `mission.no_fly_zones`)."""
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


class PositionErrorConfig(types.Section):
    """Distance between footprints and the positions that UAVs assume.

    From a list or range, each mission draws one value.
    """

    bias: types.Spread[types.Deviation] = 0.0
    """Standard deviation along x and y of each UAV's constant error [m]."""
    jitter: types.Spread[types.Deviation] = 0.0
    """Standard deviation along x and y of the error of each reading [m]."""


class UAVConfig(types.Section):
    """Radio, position errors and crashes; from a list or range, each mission draws one value."""

    communication_range: types.Drawn[types.Range] = 25.0
    """Largest distance at which UAVs hear each other [m]; .inf = no limit."""
    failure_rate: types.Drawn[types.Share] = 0.0
    """Share of lost messages."""
    failure_burst: types.Spread[types.Burst] | None = None
    """Mean number of consecutive messages that are lost between two UAVs; null = messages are lost
    independently."""
    delay: types.Drawn[types.Delay] = 0
    """Moves until a message arrives; from a list, each message draws one value."""
    position_error: PositionErrorConfig = PositionErrorConfig()
    crash_rate: types.Drawn[types.Share] = 0.0
    """Share of UAVs that crash after each move."""


class MissionsConfig(types.Section):
    """Purpose, team size and starts of missions."""

    mission_mode: Literal["training", "deployment"] = "training"
    """Purpose; deployment flies windows of a whole raster with a trained team or a planner."""
    n_agents: types.Drawn[Annotated[int, Field(ge=1, le=MOST_AGENTS)]] = 4
    """Number of UAVs; from a list, each mission draws one value."""
    start: Literal["random", "corners", "published"] = "random"
    """Starts at the highest altitude: distinct random cells, corners, or as in the published
    code (UAV 0 in the middle of edge y = 0, the others in random cells, possibly the same)."""


class RewardConfig(types.Section):
    """Scales and offsets of the (relative) reward and of the reported (absolute) return."""

    function: types.DottedPath | None = None
    """Dotted path of a custom reward that replaces the built-in reward."""
    relative_scale: types.Scale = 22.0
    """Scale of the reward: relative_scale · relative gain + relative_offset."""
    relative_offset: types.Scale = -0.5
    """Offset of the reward."""
    outside_weight: types.Share = 0.0
    """Weight of entropy outside the ROI in the relative gain; the weight inside is 1."""
    f1_scale: types.Scale = 0.0
    """Scale of an additional reward: the gain in F1 of the belief from all readings."""
    absolute_scale: types.Scale = 10.0
    """Scale of the reported return: sum of absolute_scale · absolute gain + absolute_offset."""
    absolute_offset: types.Scale = -0.17
    """Offset of each term in the reported return."""


class PlannerConfig(types.Section):
    """Planner that flies instead of the trained team."""

    missions: types.Count = 50
    """Number of missions."""


class CoverageConfig(PlannerConfig):
    """Coverage planner."""

    altitude: types.Metres = 5.0
    """Altitude of the lanes [m]; must be an altitude of the lattice."""


class InformationGainConfig(PlannerConfig):
    """Greedy information-gain planner."""

    communication: bool = True
    """Whether each UAV knows the next footprints of the other UAVs."""


class SearchConfig(PlannerConfig):
    """Search planner, which plans on a predicted map."""

    predictor: types.Predictor = types.PRETRAINED_PREDICTOR
    """Trained predictor: run folder, checkpoint file, or the included predictor."""
    target: Literal["roi", "map"] = "roi"
    """What plans reduce: entropy expected in the ROI, or doubt left in the completed map."""
    outside_weight: types.Share = 0.0
    """Weight of the expected entropy outside the ROI; a positive weight improves F1. For `roi`."""
    plan_memory: types.Share = 0.9
    """Weight of a plan one move after reception; 0 = only plans received now count."""
    presumed_share: types.Share = 0.7
    """Share of a sector's entropy that its UAV is assumed to remove while its plan is unknown."""
    presumed_beside_plan: types.Share = 0.0
    """Share of `presumed_share` that is assumed in addition to a plan just received."""
    horizon: Annotated[int, Field(ge=1, le=1000)] = 1000
    """Number of moves that a plan looks ahead, at most all moves left; a short horizon also limits
    the map that is searched."""
    beams: Annotated[int, Field(ge=1, le=4096)] = 24
    """Number of paths that the beam search keeps."""
    rate_actions: bool = False
    """Whether to keep `beams` paths for each first action, so that all actions get a score, which a
    student can learn."""


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
    """Algorithm: one of the names in `parts.ALGORITHMS`, or dotted path of a custom one."""
    policy: types.Policy = "learned"
    """Policy: `learned` trains a team; a planner's name or dotted path flies this planner."""
    constraints: ConstraintsConfig = ConstraintsConfig()
    uav: UAVConfig = UAVConfig()
    missions: MissionsConfig = MissionsConfig()
    reward: RewardConfig = RewardConfig()
    baselines: BaselinesConfig = BaselinesConfig()


class DeploymentConfig(types.Section):
    """Location of a deployment on Earth, and settings of its mission files."""

    origin: types.Point | None = None
    """(latitude, longitude) of the map's lower left corner [degrees]; null = as in its file."""
    home: types.Point | None = None
    """(latitude, longitude) of UAV 1's take-off [degrees], the others take off further east;
    null = lower left corner of the window."""
    autopilot: Literal["ardupilot", "px4"] = "ardupilot"
    """Autopilot of the UAVs, which decides the commands and parameters in their files."""
    altitudes: Literal["home", "ground"] = "home"
    """Reference of altitudes in mission files: the take-off point, or the ground below (ArduPilot
    with terrain data)."""
    speed: Annotated[float, Field(ge=0.1, le=50)] = 3.0
    """Horizontal speed in mission files [m/s]."""
    climb_speed: Annotated[float, Field(ge=0.1, le=20)] = 2.5
    """Climb speed in mission files [m/s]."""
    descent_speed: Annotated[float, Field(ge=0.1, le=20)] = 1.5
    """Descent speed in mission files [m/s]."""
    acceleration: Annotated[float, Field(ge=0.5, le=5)] = 2.0
    """Acceleration along each leg [m/s²]."""
    acceptance_radius: Annotated[float, Field(ge=0.1, le=10)] = 0.5
    """Distance at which a waypoint counts as reached [m]."""
    separation: Annotated[float, Field(ge=1, le=100)] = 5.0
    """Distance between the altitudes of UAVs in transit and on return, and least distance
    between UAVs without a warning [m]."""
    pad_distance: Annotated[float, Field(ge=1, le=1000)] = 10.0
    """Distance between the take-off points of neighbouring UAVs [m]."""

    @model_validator(mode="after")
    def _autopilot_follows_altitudes(self) -> Self:
        if self.autopilot == "px4" and self.altitudes == "ground":
            raise ValueError("altitudes: ground is not supported by px4; set altitudes: home")
        return self

    @model_validator(mode="after")
    def _pads_are_apart(self) -> Self:
        if self.pad_distance < self.separation:
            raise ValueError(
                f"pad_distance {self.pad_distance:g} is below separation {self.separation:g}; "
                "increase pad_distance"
            )
        return self
