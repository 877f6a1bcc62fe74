"""TorchRL: missions as a batched environment, and COMA as a loss.

Requires the extra `torchrl`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from marl_framework.config.model import Config
from marl_framework.device import as_device
from marl_framework.integrations import missing_extra
from marl_framework.integrations.coma_loss import COMALoss, CounterfactualCritic
from marl_framework.integrations.missions import GROUP, Missions

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ModuleNotFoundError as error:
    raise missing_extra("torchrl", error) from error

__all__ = ["COMALoss", "CounterfactualCritic", "MissionEnv"]


class MissionEnv(EnvBase):
    """E missions as a TorchRL environment with batch size [E]; all tensors stay on the device.

    The team is one group, `uavs`, with the N UAVs as second axis:

    - `("uavs", "observation")` [E, N, C, X, Y] float32, with the channels of the params file;
    - `("uavs", "action_mask")` [E, N, A] bool; for masks and conflicts see
      :class:`~marl_framework.integrations.missions.Missions`;
    - `("uavs", "mask")` [E, N] bool, the UAVs that fly; only if missions differ in team size or
      budget, moves have a cost, or UAVs can crash; inactive UAVs get reward 0, and their actions
      are ignored;
    - `("uavs", "action")` [E, N] int64;
    - `("uavs", "reward")` [E, N, 1], the team's reward for each UAV;
    - `"state"` [E, C_s, X, Y], the state of the whole team, if `with_state`;
    - `"done"`, `"terminated"`, `"truncated"` [E, 1]; missions terminate and are never truncated.

    `step` never resets. Collectors, `rollout` and `step_and_maybe_reset` reset finished missions
    with a `_reset` entry; the other missions do not change. On the CPU `step` raises ValueError
    for an action out of range.

    Args:
        config, num_envs, device, split, seed: see `Missions`; `set_seed` takes its seed modulo
            2**20.
        with_state: whether to add `"state"`.

    Attributes:
        missions: the underlying `Missions`.
        group_map: `{"uavs": ["uav_0", …]}`.
    """

    def __init__(
        self,
        config: Config | str | Path,
        num_envs: int,
        device: torch.device | str = "cpu",
        split: str = "training",
        seed: int | None = None,
        with_state: bool = False,
    ) -> None:
        super().__init__(device=as_device(device), batch_size=torch.Size([num_envs]))
        self.missions = missions = Missions(config, num_envs, device, split, seed)
        self.agent_names = missions.names
        self.group_map = {GROUP: self.agent_names}
        self._with_state = with_state
        self._team = team = (num_envs, len(self.agent_names))
        batch = {"shape": self.batch_size, "device": self.device}

        def group(**leaves: Any) -> Composite:
            return Composite({GROUP: Composite(leaves, shape=team)}, **batch)

        def numbers(*shape: int) -> Unbounded:
            return Unbounded(shape, device=self.device)

        def flags(*shape: int) -> Categorical:
            return Categorical(2, shape=shape, dtype=torch.bool, device=self.device)

        entries = {
            "observation": numbers(*team, *missions.observation_shape),
            "action_mask": flags(*team, missions.num_actions),
        }
        if missions.environment.has_inactive:
            entries["mask"] = flags(*team)
        self.observation_spec = group(**entries)
        if with_state:
            self.observation_spec["state"] = numbers(num_envs, *missions.team_shape)
        form = {"shape": team, "dtype": torch.int64, "device": self.device}
        self.action_spec = group(action=Categorical(missions.num_actions, **form))
        self.reward_spec = group(reward=numbers(*team, 1))
        ends = {name: flags(num_envs, 1) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, **batch)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.missions.reset(None if mask is None else mask.view(self.batch_size))
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        active = self.missions.state.active.clone()
        actions, last = tensordict[GROUP, "action"], self.missions.num_actions - 1
        if actions.device.type == "cpu" and not ((actions >= 0) & (actions <= last)).all():
            found = f"{actions.min()} to {actions.max()}"
            raise ValueError(f"actions from {found}: each must be 0 to {last}")
        result = self.missions.step(actions)
        terminated = result.terminated.unsqueeze(-1)
        out = self._observe()
        out.set((GROUP, "reward"), (result.reward.unsqueeze(1) * active).unsqueeze(-1))
        out.set("done", terminated)
        out.set("terminated", terminated.clone())
        out.set("truncated", result.truncated.unsqueeze(-1))
        return out

    def _observe(self) -> TensorDict:
        missions = self.missions
        team = {"observation": missions.observe(), "action_mask": missions.masks()}
        if missions.environment.has_inactive:
            team["mask"] = missions.state.active.clone()
        entries: dict[str, Any] = {GROUP: TensorDict(team, self._team, device=self.device)}
        if self._with_state:
            entries["state"] = missions.team()
        return TensorDict(entries, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.missions.seed(seed)
