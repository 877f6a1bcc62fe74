"""PettingZoo: a mission as a parallel environment.

Requires the extra `pettingzoo`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from marl_framework.config.model import Config
from marl_framework.integrations import missing_extra
from marl_framework.integrations.missions import LOWEST, Missions
from marl_framework.integrations.rendering import METADATA, Array, Viewer, to_numpy

try:
    from gymnasium.spaces import Box, Dict, Discrete
    from pettingzoo import ParallelEnv
    from pettingzoo.utils.env_logger import EnvLogger
except ModuleNotFoundError as error:
    raise missing_extra("pettingzoo", error) from error

__all__ = ["MissionParallelEnv"]

AgentObservation = dict[str, Array]


class MissionParallelEnv(ParallelEnv[str, AgentObservation, int]):
    """One mission with the agents `uav_0` … `uav_{N-1}`, in NumPy.

    An observation is `{"observation": [C, X, Y] float32, "action_mask": [A] int8}`. For masks and
    conflicts see :class:`~marl_framework.integrations.missions.Missions`. All agents receive the
    team's reward.

    An agent that crashes terminates at once. All other agents terminate with the last move; then
    `agents` is empty until `reset`. If missions draw their number of UAVs, `agents` contains the
    first of `possible_agents`. Without a seed, `reset` starts the next mission of the sequence.

    Args:
        config, device, split, seed: see `Missions`. Observations are copied to the host. `reset`
            takes its seed modulo 2**20.
        render_mode: "rgb_array" (`render` returns an image [H, W, 3] uint8), "human" (a window
            shows every step) or None.

    Raises:
        ConfigError: the configuration or the render mode is invalid.
    """

    def __init__(
        self,
        config: Config | str | Path,
        device: torch.device | str = "cpu",
        split: str = "training",
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._viewer = Viewer(render_mode)
        self.metadata = {**METADATA, "name": "mission_v0", "is_parallelizable": True}
        self.render_mode = render_mode
        self.missions = missions = Missions(config, 1, device, split, seed)
        self.possible_agents = list(missions.names)
        self.agents: list[str] = []
        self._has_reset = False
        self.observation_spaces = {
            name: Dict(
                observation=Box(LOWEST, missions.highest, missions.observation_shape, np.float32),
                action_mask=Box(0, 1, (missions.num_actions,), np.int8),
            )
            for name in missions.names
        }
        self.action_spaces = {name: Discrete(missions.num_actions) for name in missions.names}
        self.state_space = Box(LOWEST, missions.highest, missions.team_shape, np.float32)

    def observation_space(self, agent: str) -> Dict:
        """Return the observation space of an agent, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """Return the action space of an agent, always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, AgentObservation], dict[str, dict[str, Any]]]:
        """Start the next mission, or the first one of `seed`."""
        if seed is not None:
            self.missions.seed(seed)
        self.missions.reset()
        self._has_reset = True
        self.agents = self._active_agents(self.possible_agents)
        self._viewer.refresh(self.missions)
        return self._observe(self.agents), {name: {} for name in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[
        dict[str, AgentObservation], dict[str, float], dict[str, bool], dict[str, bool],
        dict[str, dict[str, Any]],
    ]:  # fmt: skip
        """Fly one step; return empty dictionaries if the mission is over.

        Raises ValueError if an agent's action is missing or invalid, and AssertionError before the
        first `reset`.
        """
        if not self._has_reset:
            EnvLogger.error_step_before_reset()
        names = self.agents
        if not names:
            return {}, {}, {}, {}, {}
        if missing := [name for name in names if name not in actions]:
            raise ValueError(f"actions: {', '.join(missing)} missing; give one action per agent")
        chosen = [int(actions[name]) for name in names]
        last = self.missions.num_actions - 1
        if not all(0 <= action <= last for action in chosen):
            raise ValueError(f"actions {chosen} of {', '.join(names)}: each must be 0 to {last}")
        moves = dict(zip(names, chosen, strict=True))
        result = self.missions.step([[moves.get(name, 0) for name in self.possible_agents]])
        self.agents = [] if result.terminated[0] else self._active_agents(names)
        self._viewer.refresh(self.missions)
        return (
            self._observe(names),
            dict.fromkeys(names, float(result.reward[0])),
            {name: name not in self.agents for name in names},
            dict.fromkeys(names, False),
            {name: {} for name in names},
        )

    def state(self) -> Array:
        """Return the state of the whole team, [C_s, X, Y] float32."""
        return to_numpy(self.missions.team()[0])

    def render(self) -> Array | None:
        """Return an image [H, W, 3] uint8 in mode "rgb_array"; show it in mode "human"."""
        images = self._viewer.render(self.missions)
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the window of mode "human"."""
        self._viewer.close()

    def _active_agents(self, names: list[str]) -> list[str]:
        active = self.missions.state.active[0].tolist()
        flies = dict(zip(self.possible_agents, active, strict=True))
        return [name for name in names if flies[name]]

    def _observe(self, names: list[str]) -> dict[str, AgentObservation]:
        maps = to_numpy(self.missions.observe()[0])
        masks = to_numpy(self.missions.masks()[0].to(torch.int8))
        index = self.possible_agents.index
        return {
            name: {"observation": maps[index(name)], "action_mask": masks[index(name)]}
            for name in names
        }
