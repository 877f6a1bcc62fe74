from .algorithms.coma import COMAWrapper as COMAWrapper
from .algorithms.policy import (
    log_probabilities as log_probabilities,
    policy_probabilities as policy_probabilities,
)
from .algorithms.registry import make_algorithm as make_algorithm
from .algorithms.rollout import (
    Algorithm as Algorithm,
    Rollout as Rollout,
    RolloutCollector as RolloutCollector,
    TeamTask as TeamTask,
)
from .config.errors import ConfigError as ConfigError
from .config.loading import (
    config_from_dict as config_from_dict,
    config_to_dict as config_to_dict,
    dump_config as dump_config,
    load_config as load_config,
)
from .config.model import Config as Config, NetworkSizes as NetworkSizes
from .device import resolve_device as resolve_device
from .evaluation.flight import FlightRecord as FlightRecord, fly as fly
from .evaluation.mission_page import MissionPage as MissionPage
from .exporting.portable import PortableActor as PortableActor, PortableTeam as PortableTeam
from .mission.camera import Camera as Camera
from .mission.camera_noise import CameraNoise as CameraNoise
from .mission.state import ResetDraws as ResetDraws, StepDraws as StepDraws
from .mission.environment import (
    MissionEnvironment as MissionEnvironment,
    StepResult as StepResult,
)
from .mission.lattice import Lattice as Lattice
from .mission.reward import Reward as Reward, Utility as Utility
from .mission.sensor import Sensor as Sensor
from .mission.state import MissionState as MissionState, Seen as Seen
from .mission.terrains.mixture import Terrain as Terrain, TerrainDraws as TerrainDraws
from .mission.terrains.mixture import TerrainKind as TerrainKind
from .networks.convolutional import ConvolutionalNetwork as ConvolutionalNetwork
from .networks.registry import make_actor as make_actor
from .observations.builder import ObservationBuilder as ObservationBuilder
from .observations.completion import (
    MapCompletion as MapCompletion,
    make_completion as make_completion,
)
from .observations.task import MissionTask as MissionTask
from .planners import (
    CoveragePlanner as CoveragePlanner,
    Decision as Decision,
    InformationGainPlanner as InformationGainPlanner,
    LearnedPlanner as LearnedPlanner,
    OraclePlanner as OraclePlanner,
    Planner as Planner,
    RandomPlanner as RandomPlanner,
)
from .planners.registry import make_planner as make_planner
from .planners.team import find_checkpoint as find_checkpoint, mission_config as mission_config
from .runs.checkpoint import (
    load_checkpoint as load_checkpoint,
    save_checkpoint as save_checkpoint,
)
from .runs.folder import RunFolder as RunFolder
from .training.trainer import Trainer as Trainer

__version__: str
