"""Gymnasium: one mission as an environment, E missions as a vector environment.

Requires the extra `gymnasium`. Importing this module registers `marl_framework/Mission-v0` for
`gymnasium.make` and `gymnasium.make_vec`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.integrations import missing_extra
from marl_framework.integrations.missions import LOWEST, Missions
from marl_framework.integrations.rendering import METADATA, Array, Viewer, to_numpy

try:
    import gymnasium
    from gymnasium.spaces import Box, MultiDiscrete
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as error:
    raise missing_extra("gymnasium", error) from error

__all__ = ["ENV_ID", "MissionEnv", "MissionVectorEnv"]

ENV_ID = "marl_framework/Mission-v0"
Info = dict[str, Any]


class MissionVectorEnv(VectorEnv[Array, Array, Array]):
    """E missions in NumPy; one action controls all UAVs of a mission.

    Observations are [E, N, C, X, Y] float32, actions [E, N] integers, rewards [E].
    `info["action_mask"]` is [E, N, A] int8. For masks and conflicts see
    :class:`~marl_framework.integrations.missions.Missions`.

    If missions differ in team size or budget, moves have a cost, or UAVs can crash,
    `info["active"]`, [E, N] int8, marks the UAVs that fly; actions of inactive UAVs are ignored.
    Missions that end at different times (budgets, costs, crashes) require the mode `DISABLED`.
    `autoreset_mode` defines what follows the last step:
    `NEXT_STEP`: the next `step` ignores its actions, starts new missions and returns reward 0;
    `SAME_STEP`: new missions start at once, and `info["final_obs"]` holds the last observations;
    `DISABLED`: `reset` starts new missions, or only those selected by
    `options={"reset_mask": [E] bool}`. Without a seed, the sequence of missions continues.

    Args:
        config, num_envs, device, split, seed: see `Missions`. Observations are copied to the
            host. `reset` takes one seed for all missions, modulo 2**20.
        render_mode: "rgb_array" (`render` returns an image [H, W, 3] uint8 of each mission),
            "human" (a window shows every step of the first mission) or None.
        autoreset_mode: a `gymnasium.vector.AutoresetMode`.

    Raises:
        ConfigError: the configuration or the render mode is invalid.
    """

    def __init__(
        self,
        config: Config | str | Path = "params.yaml",
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        split: str = "training",
        seed: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        self._viewer = Viewer(render_mode)
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode}
        self.num_envs = num_envs
        self.missions = missions = Missions(config, num_envs, device, split, seed)
        keys = missions.environment.config.missions.keys_that_end_missions
        if keys and self.autoreset_mode != AutoresetMode.DISABLED:
            raise ConfigError(
                f"{' and '.join(keys)}: missions with automatic resets must end together; choose "
                "one budget, cost.limit null and crash_rate 0, or AutoresetMode.DISABLED"
            )
        n = len(missions.names)
        self.single_observation_space = Box(
            LOWEST, missions.highest, (n, *missions.observation_shape), np.float32
        )
        self.single_action_space = MultiDiscrete([missions.num_actions] * n)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._over = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, Info]:
        """Start new missions, or the first ones of `seed`.

        Raises ValueError for a list of seeds, or a `reset_mask` that is not [E] bool or is used
        with another mode than `DISABLED`.
        """
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ValueError(f"seed {seed!r}: must be one integer, shared by all missions")
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            if self.autoreset_mode != AutoresetMode.DISABLED:
                raise ValueError("reset_mask requires autoreset_mode=AutoresetMode.DISABLED")
            mask = np.asarray(mask)
            if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
                raise ValueError(f"reset_mask {mask}: must have {self.num_envs} booleans")
        super().reset(seed=None if seed is None else int(seed))
        if seed is not None:
            self.missions.seed(int(seed))
        self._restart(mask)
        self._viewer.refresh(self.missions)
        return self._observe()

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:
        """Fly one step; `autoreset_mode` defines what follows the last step.

        Raises ValueError if an action is invalid, or a mission is over and was not reset.
        """
        chosen = np.asarray(actions)
        is_integer = np.issubdtype(chosen.dtype, np.integer)
        if not (is_integer and self.action_space.contains(chosen.astype(np.int64))):
            raise ValueError(f"actions {chosen.tolist()} are not in {self.action_space}")
        if self._over.any() and self.autoreset_mode == AutoresetMode.DISABLED:
            over = np.flatnonzero(self._over).tolist()
            raise ValueError(f"missions {over} are over; reset() them with a reset_mask")
        if self._over.any():
            self._restart()
            rewards, terminated = np.zeros(self.num_envs, np.float32), self._over.copy()
        else:
            result = self.missions.step(chosen)
            rewards, terminated = to_numpy(result.reward), to_numpy(result.terminated)
            self._over = terminated.copy()
        observations, info = self._observe()
        if self._over.any() and self.autoreset_mode == AutoresetMode.SAME_STEP:
            observations, info = self._restart_now(observations, info)
        self._viewer.refresh(self.missions)
        return observations, rewards, terminated, np.zeros(self.num_envs, np.bool_), info

    def render(self) -> tuple[Array, ...] | None:
        """Return images of all missions ("rgb_array") or show the first mission ("human")."""
        return self._viewer.render(self.missions)

    def close_extras(self, **_: Any) -> None:
        """Close the window of mode "human"."""
        self._viewer.close()

    def _restart(self, mask: Array | None = None) -> None:
        self.missions.reset(mask)
        self._over[slice(None) if mask is None else mask] = False

    def _restart_now(self, last: Array, last_info: Info) -> tuple[Array, Info]:
        """Start new missions; return their observations, and info with the old missions' last."""
        self._restart()
        observations, info = self._observe()
        final, all_true = np.empty(self.num_envs, dtype=object), np.ones(self.num_envs, np.bool_)
        final[:] = list(last)
        info |= {"final_obs": final, "_final_obs": all_true}
        return observations, info | {"final_info": last_info, "_final_info": all_true}

    def _observe(self) -> tuple[Array, Info]:
        missions, all_true = self.missions, np.ones(self.num_envs, np.bool_)
        masks = to_numpy(missions.masks().to(torch.int8))
        info: Info = {"action_mask": masks, "_action_mask": all_true}
        if missions.environment.has_inactive:
            active = to_numpy(missions.state.active.to(torch.int8))
            info |= {"active": active, "_active": all_true}
        return to_numpy(missions.observe()), info


class MissionEnv(gymnasium.Env[Array, Array]):
    """One mission: :class:`MissionVectorEnv` without the first axis and without automatic resets.

    For the arguments see `MissionVectorEnv`.
    """

    metadata = METADATA

    def __init__(
        self,
        config: Config | str | Path = "params.yaml",
        device: torch.device | str = "cpu",
        split: str = "training",
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self._vector = MissionVectorEnv(
            config, 1, device, split, seed, render_mode, AutoresetMode.DISABLED
        )
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, Info]:
        """Start the next mission, or the first one of `seed`."""
        super().reset(seed=seed)
        observations, info = self._vector.reset(seed=seed)
        return observations[0], _first_mission(info)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Fly one step of all UAVs with actions [N]."""
        observations, rewards, terminated, _, info = self._vector.step(np.asarray(action)[None])
        return observations[0], float(rewards[0]), bool(terminated[0]), False, _first_mission(info)

    def render(self) -> Any:
        """Return an image in mode "rgb_array"; show it in mode "human"."""
        images = self._vector.render()
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the window of mode "human"."""
        self._vector.close()


def _first_mission(info: Info) -> Info:
    return {name: values[0] for name, values in info.items() if not name.startswith("_")}


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point=f"{__name__}:{MissionEnv.__name__}",
        vector_entry_point=f"{__name__}:{MissionVectorEnv.__name__}",
    )
