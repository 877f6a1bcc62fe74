from typing import Final

from marl_framework.coma.networks import (
    ActorNetwork as ActorNetwork,
    CriticNetwork as CriticNetwork,
    NetworkSizes as NetworkSizes,
)
from marl_framework.coma.rollout import (
    Rollout as Rollout,
    RolloutCollector as RolloutCollector,
    TeamTask as TeamTask,
)
from marl_framework.coma_wrapper import (
    COMAWrapper as COMAWrapper,
    mission_sizes as mission_sizes,
)
from marl_framework.config import (
    Config as Config,
)
from marl_framework.config_io import (
    ConfigError as ConfigError,
    config_from_dict as config_from_dict,
    config_to_dict as config_to_dict,
    dump_config as dump_config,
    load_config as load_config,
)
from marl_framework.device import (
    resolve_device as resolve_device,
)
from marl_framework.evaluation.flight import (
    FlightRecord as FlightRecord,
    fly as fly,
)
from marl_framework.mission.camera import (
    Camera as Camera,
)
from marl_framework.mission.environment import (
    MissionEnvironment as MissionEnvironment,
    ResetDraws as ResetDraws,
    StepDraws as StepDraws,
    StepResult as StepResult,
)
from marl_framework.mission.lattice import (
    Lattice as Lattice,
)
from marl_framework.mission.own_terrain import (
    OwnTerrain as OwnTerrain,
)
from marl_framework.mission.reward import (
    Reward as Reward,
    Utility as Utility,
)
from marl_framework.mission.state import (
    MissionState as MissionState,
)
from marl_framework.mission.terrain import (
    Terrain as Terrain,
    TerrainDraws as TerrainDraws,
)
from marl_framework.observations.builder import (
    ObservationBuilder as ObservationBuilder,
    Seen as Seen,
)
from marl_framework.planners import (
    CoveragePlanner as CoveragePlanner,
    InformationGainPlanner as InformationGainPlanner,
    LearnedPlanner as LearnedPlanner,
    OraclePlanner as OraclePlanner,
    Planner as Planner,
    RandomPlanner as RandomPlanner,
)
from marl_framework.planners.portable import (
    PortableActor as PortableActor,
    PortableTeam as PortableTeam,
)
from marl_framework.training.checkpoint import (
    load_checkpoint as load_checkpoint,
    save_checkpoint as save_checkpoint,
)
from marl_framework.training.run_folder import (
    RunFolder as RunFolder,
)
from marl_framework.training.task import (
    MissionTask as MissionTask,
)
from marl_framework.training.trainer import (
    Trainer as Trainer,
)

__version__: Final[str]
