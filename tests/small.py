"""Small missions for the tests."""

from typing import Any

import torch

from marl_framework.config.field import with_area
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState, StepDraws


def config_with(*overrides: str) -> Config:
    """Return `params_test.yaml` with overrides."""
    return load_config("params_test", overrides)


def small_config(
    *,
    pixels: tuple[int, int] = (12, 12),
    dims: tuple[float, float] = (30.0, 30.0),
    agents: int = 3,
    actions: int = 6,
    budget: int = 4,
    max_altitude: float = 15.0,
    seed: int = 3,
    num_envs: int = 4,
    prior: float = 0.5,
    uav: dict[str, Any] | None = None,
    missions: dict[str, Any] | None = None,
    constraints: dict[str, Any] | None = None,
    **sections: Any,
) -> Config:
    """Return a 7 × 7 lattice over a coarse map, with overrides."""
    limits = {"budget": budget, "num_actions": actions, "max_altitude": max_altitude}
    tree: dict[str, Any] = {
        "environment": {"num_envs": num_envs, "seed": seed, "x_dim": dims[0], "y_dim": dims[1]},
        "sensor": {"pixel": {"number_x": pixels[0], "number_y": pixels[1]}},
        "mapping": {"prior": prior},
        "experiment": {
            "constraints": {**limits, **(constraints or {})},
            "uav": uav or {},
            "missions": {"n_agents": agents, **(missions or {})},
        },
        "networks": {name: {"conv_channels": 8, "hidden_dim": 8} for name in ("actor", "critic")},
        "compute": {"precision": "float32"},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return Config.model_validate(with_area(tree))


def random_actions(
    env: MissionEnvironment, state: MissionState, generator: torch.Generator
) -> torch.Tensor:
    """Choose uniformly among allowed actions."""

    def choose(_: int, mask: torch.Tensor) -> torch.Tensor:
        return (torch.rand(mask.shape, generator=generator, device=mask.device) * mask).argmax(-1)

    return env.lattice.choose_in_order(state.positions, choose)[0]


def meta_draws(env: MissionEnvironment) -> StepDraws:
    """Return the shapes of a step's draws on the meta device."""
    e, n = env.num_envs, env.n_agents
    return StepDraws(
        torch.empty(e, n, *env.camera.window, dtype=torch.int16, device="meta"),
        torch.empty(e, n, n, device="meta"),
    )
