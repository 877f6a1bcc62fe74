"""A miniature of the published code: its modules and calls, with the plain baseline's mission.

Its modules import each other with and without the package's name, like those of the published code.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config

SOURCES = {
    "constants.py": """
import os
EDGE = 0  # rows and columns that a footprint at the far edge stops short
PLACE = os.path.basename(os.path.dirname(__file__))
""",
    "utils/plotting.py": """
import seaborn as sns, marl_framework.constants
def place():
    return marl_framework.constants.PLACE
def draw():
    return sns
""",
    "utils/utils.py": """
import numpy as np
def get_wrmse(belief, truth):
    found = belief > 0.5
    return 2 * np.sum(found & (truth == 1)) / max(1, np.sum(found) + np.sum(truth == 1))
""",
    "agent/state_space.py": """
import numpy as np
class AgentStateSpace:
    def __init__(self, params):
        limits = params["experiment"]["constraints"]
        self.spacing, self.max_altitude = limits["spacing"], limits["max_altitude"]
        self.space_x_dim = int(params["environment"]["x_dim"] // self.spacing + 1)
        self.space_y_dim = int(params["environment"]["y_dim"] // self.spacing + 1)
    def get_random_agent_state(self, agent_id, episode):
        r = np.random.RandomState(seed=3 * episode * agent_id)
        x, y = r.randint(0, self.space_x_dim), r.randint(0, self.space_y_dim)
        return np.array([x * self.spacing, y * self.spacing, self.max_altitude])
""",
    "agent/action_space.py": """
import numpy as np
from mapping.grid_maps import lattice, metres
from benchmarks.reference import plain_mission as plain
class AgentActionSpace:
    def __init__(self, geometry):
        self.geometry = geometry
    def get_action_mask(self, position):
        return plain.boundary_mask(self.geometry, lattice(position)).astype(float), None
    def apply_collision_mask(self, position, mask, next_positions, space):
        taken = [lattice(place) for place in next_positions]
        return plain.action_mask(self.geometry, lattice(position), taken).astype(float)
    def action_to_position(self, position, action):
        return metres(self.geometry, plain.move(self.geometry, lattice(position), int(action)))
""",
    "agent/agent.py": """
class Agent:
    def __init__(self, mapping, agent_id, space):
        self.mapping, self.agent_id, self.space = mapping, agent_id, space
        self.local_map = mapping.init_priors()
    def look(self):
        self.local_map, self.map2communicate = self.mapping.update_grid_map(
            self.position, self.local_map)
    def communicate(self, t, episode, log):
        if t == 0:
            self.position = self.space.get_random_agent_state(self.agent_id, episode)
            self.look()
        log[self.agent_id] = {
            "position": self.position, "map2communicate": self.map2communicate}
    def receive_messages(self, log, agent_id, t):
        heard = self.mapping.near(log, agent_id)
        self.local_map = self.mapping.fuse_map(self.local_map, heard, agent_id, "local")
        return heard, self.local_map
""",
    "mapping/grid_maps.py": """
import numpy as np
def lattice(position):
    return int(position[0] // 5), int(position[1] // 5), int(position[2] // 5 - 1)
def metres(geometry, place):
    return geometry.metres(place).astype(int)
class GridMap:
    def __init__(self, geometry):
        self.x_dim, self.y_dim = geometry.cells
        self.resolution_x, self.resolution_y = geometry.cell_size
""",
    "mapping/ground_truths.py": """
import numpy as np
def gaussian_random_field(pk, x_dim, y_dim, episode):
    np.random.seed(episode)
    environment_type_idx = 0
    field = np.zeros((y_dim, x_dim))
    if environment_type_idx == 0:
        field[: y_dim // 2] = 1
    else:
        field[:, : 10 * environment_type_idx] = 1
    np.random.normal(size=4)  # a random field is drawn and thrown away
    return field
""",
    "mapping/simulations.py": """
from mapping import ground_truths
class Simulation:
    drawn = 0
    def __init__(self, geometry, episode):
        self.geometry = geometry
        self.simulated_map = self.simulate_map(episode)
    def simulate_map(self, episode):
        Simulation.drawn += 1
        return ground_truths.gaussian_random_field(None, *self.geometry.cells, episode)
""",
    "mapping/mappings.py": """
import numpy as np
import torch
from marl_framework.mapping.grid_maps import lattice
from marl_framework.mapping.simulations import Simulation
from marl_framework.sensors.cameras import Camera
from benchmarks.reference import plain_mission as plain
class Mapping:
    def __init__(self, geometry, params, episode):
        self.geometry, self.params, self.camera = geometry, params, Camera(geometry)
        self.simulated_map = Simulation(geometry, episode).simulated_map
    def init_priors(self):
        return np.full(self.geometry.cells, 0.5, np.float32)
    def near(self, log, i):
        reach = self.params["experiment"]["uav"]["communication_range"]
        places = {j: lattice(log[j]["position"]) for j in log}
        near = [j for j in log if plain.near(self.geometry, places[i], places[j], reach)]
        lost = self.params["experiment"]["uav"]["failure_rate"]
        return {j: log[j] for j in near if j == i or np.random.random_sample() >= lost}
    def update_grid_map(self, position, belief):
        _, (left, right, top, bottom) = self.camera.project_field_of_view(position, None, None)
        window, noise = np.s_[top:bottom, left:right], self.geometry.noise[lattice(position)[2]]
        wrong = torch.rand(bottom - top, right - left).numpy() < noise
        reading = np.where((self.simulated_map[window] == 1) ^ wrong, 1 - noise, noise)
        sent = self.init_priors()
        sent[window] = reading
        return self.update_cells(belief, sent, None), sent
    def update_cells(self, p, z, mode):
        return plain.bayes(p, np.float32(z), 0.5)
    def fuse_map(self, own, others, agent_id, mode):
        sent = others if isinstance(others, list) else [
            others[j]["map2communicate"] for j in others if j != agent_id]
        for reading in sent:
            own = self.update_cells(own, reading, None)
        return own
""",
    "sensors/models/sensor_models.py": """
class AltitudeSensorModel:
    def __init__(self, params):
        pass
    def get_noise_variance(self, altitude):
        return {5: 0.01, 10: 0.265, 15: 0.375}.get(altitude, 0)
""",
    "sensors/cameras.py": """
import constants
from mapping.grid_maps import lattice
from benchmarks.reference import plain_mission as plain
class Camera:
    def __init__(self, geometry):
        self.geometry = geometry
    def project_field_of_view(self, position, res_x, res_y):
        seen = plain.footprint(self.geometry, lattice(position))
        rows, cols = (size - constants.EDGE for size in self.geometry.cells)
        clipped = [seen.col0, min(seen.col1, cols), seen.row0, min(seen.row1, rows)]
        return None, clipped
""",
    "coma_wrapper.py": """
import torch
from marl_framework.mapping.grid_maps import lattice
from benchmarks.reference import plain_mission as plain
torch.autograd.set_detect_anomaly(True)
class COMAWrapper:
    def __init__(self, geometry):
        self.geometry = geometry
    def build_observations(self, mapping, agents, num_episode, t, params, batch_memory, mode):
        log, seen, g = {}, [], self.geometry
        for agent in agents:
            agent.communicate(t, num_episode, log)
        places = [lattice(log[i]["position"]) for i in log]
        windows = [plain.footprint(g, place).window for place in places]
        readings = [log[i]["map2communicate"][windows[i]] for i in log]
        for i, agent in enumerate(agents):
            heard, belief = agent.receive_messages(log, i, t)
            seen.append(plain.actor_observation(g, t, i, places, list(heard), belief, readings))
        return log, places, seen
""",
    "IG_baseline.py": """
import json
import numpy as np
from torch.utils.tensorboard import SummaryWriter
import constants, utils.plotting
from agent.action_space import AgentActionSpace
from agent.agent import Agent
from marl_framework.agent.state_space import AgentStateSpace
from coma_wrapper import COMAWrapper
from mapping.grid_maps import GridMap, lattice
from mapping.mappings import Mapping
from sensors.cameras import Camera
from sensors.models.sensor_models import AltitudeSensorModel
from utils.utils import get_wrmse
from benchmarks.reference import plain_mission as plain
class IG_baseline:
    def __init__(self, params, writer, num_episode):
        self.params, self.num_episode, self.batch_memory = params, num_episode, None
        self.geometry = plain.Geometry.of(plain.Config.model_validate_json(json.dumps(params)))
        self.budget = params["experiment"]["constraints"]["budget"]
        self.n_agents = params["experiment"]["missions"]["n_agents"]
        self.coma_wrapper, self.grid_map = COMAWrapper(self.geometry), GridMap(self.geometry)
        self.mapping = Mapping(self.geometry, params, num_episode)
        self.agent_state_space = AgentStateSpace(params)
        self.action_space, self.camera = AgentActionSpace(self.geometry), Camera(self.geometry)
        self.sensor_model = AltitudeSensorModel(params)
    def measure(self, belief):
        truth = self.mapping.simulated_map
        return plain.roi_entropy(belief, truth == 1), get_wrmse(belief, truth)
    def execute(self):
        space = self.agent_state_space
        agents = self.agents = [Agent(self.mapping, i, space) for i in range(self.n_agents)]
        belief = self.mapping.init_priors()
        measured = [self.measure(belief)]
        for t in range(self.budget + 1):
            sent, _, _ = self.coma_wrapper.build_observations(
                self.mapping, agents, self.num_episode, t, self.params, self.batch_memory, None)
            if t == 0:
                belief = self.mapping.fuse_map(belief, sent, None, "global")
            goals, gains, before = [], [], []
            for agent in agents:
                mask = self.action_space.get_action_mask(agent.position)[0]
                mask = self.action_space.apply_collision_mask(agent.position, mask, before, space)
                goal, gain = self.get_individual_ig(agent.position, mask, agent.local_map)
                goals.append(goal)
                gains.append(gain)
                before.append(agent.position)
            utilities = self.get_cell_utilities(goals, self.get_relative_ig(gains))
            for i, agent in enumerate(agents):
                action = self.select_action(utilities[i])
                agent.position = self.action_space.action_to_position(agent.position, action)
                agent.look()
            sent = [agent.map2communicate for agent in agents]
            belief = self.mapping.fuse_map(belief, sent, None, "global")
            measured.append(self.measure(belief))
        entropies, scores = zip(*measured)
        return 0, 0, [], entropies, scores
    def get_individual_ig(self, position, mask, belief):
        return [0] * len(mask), list(mask)  # the first action that is free
    def get_relative_ig(self, gains):
        return gains
    def get_cell_utilities(self, goals, gains):
        return gains
    def select_action(self, utilities):
        return np.argmax(utilities)
""",
    "random_baseline.py": """
from IG_baseline import IG_baseline
class RandomBaseline(IG_baseline):
    def execute(self):
        return super().execute()[2:]
""",
}


def write_clone(folder: Path, config: Config, **changed: str) -> Path:
    """Write a stand-in for a clone; return its root.

    Args:
        folder: parent of the root.
        config: content of its params.yaml.
        changed: changed sources, by their names in `SOURCES` with / as _ and without .py.
    """
    package = folder / "ipp-marl" / "marl_framework"
    for name, text in SOURCES.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(package).parents:
            (package / parent / "__init__.py").touch()
        text = changed.get(name.removesuffix(".py").replace("/", "_"), text)
        path.write_text(text, encoding="utf-8")
    text = yaml.safe_dump(config_to_dict(config))
    (package / "params.yaml").write_text(text, encoding="utf-8")
    return package.parent
