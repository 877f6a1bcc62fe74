"""Missions of different teams and budgets in one batch, against each mission by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState, ResetDraws, StepDraws
from marl_framework.observations.builder import ObservationBuilder
from tests.small import small_config

OF_UAV = {
    "heard", "active", "beliefs", "positions", "sector", "readings", "pooled_readings",
    "pooled_beliefs", "pooled_uncertainty", "limit", "left",
}  # fmt: skip
CENTRED = ("entropy", "probability", "footprint", "uncertainty")
CHANNELS = ("uncertainty", "global_uncertainty", *(f"centred_{name}" for name in CENTRED))
EVERYTHING = dict.fromkeys(CHANNELS, True)
"""All channels but predicted ones."""

Prepare = Callable[[MissionEnvironment], ObservationBuilder]
"""Chooses the kernels of an environment, and returns what draws its observations."""


def mixed_environment(num_envs: int, prepare: Prepare, **world: Any) -> MissionEnvironment:
    """Return missions that differ; `world` goes to `small_config`."""
    env = MissionEnvironment(small_config(observation=EVERYTHING, **world), num_envs, "cpu")
    prepare(env)
    assert env.has_inactive
    return env


def alone(env: MissionEnvironment, agents: int, budget: int, prepare: Prepare) -> Any:
    """Return the environment of one mission of a size, and what draws its observations."""
    single = MissionEnvironment(env.config.of_mission(agents, budget), 1, "cpu")
    builder = prepare(single)
    assert single.has_inactive == single.config.missions.has_crashes
    return single, builder


def of_mission(draws: StepDraws, e: int, team: Tensor) -> StepDraws:
    """Return the draws of some UAVs of one mission."""
    one, communication = draws[e : e + 1], draws.communication[e][team][:, team]
    sensor = one.sensor if one.sensor.dim() == 1 else one.sensor[:, team]  # keys serve all UAVs
    crashes = None if one.crashes is None else one.crashes[:, team]
    return StepDraws(sensor, communication.unsqueeze(0), crashes)


def reset_of_mission(draws: ResetDraws, e: int, team: Tensor) -> ResetDraws:
    """Return the draws of the start of one mission."""
    at = slice(e, e + 1)
    return ResetDraws(
        terrain=draws.terrain[at],
        start=draws.start[at],
        range_choice=draws.range_choice[at],
        first=of_mission(draws.first, e, team),
        boxes=draws.boxes[at],
    )


def part(state: MissionState, e: int, team: Tensor) -> MissionState:
    """Return some UAVs of one mission, a copy."""
    tensors = {}
    for name, tensor in state.tensors():
        own = tensor[e : e + 1].clone()
        if name in OF_UAV:
            own = own[:, team]
        tensors[name] = own[:, :, team] if name == "heard" else own
    return replace(state, **tensors)


def choose(env: MissionEnvironment, state: MissionState, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return allowed actions with the largest keys [E, N, A], and the masks."""
    return env.lattice.choose_in_order(
        state.positions,
        lambda i, mask: (keys[:, i] + 1).mul(mask).argmax(-1),
        active=state.active,
    )


def same(found: Tensor, expected: Tensor, name: str, rounded: bool = False) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 if rounded else 0, msg=name)


def of_products(env: MissionEnvironment, name: str) -> bool:
    """Return whether a map comes from matrix products, whose rounding depends on the batch."""
    name = name.removeprefix("centred_").removeprefix("global_")
    pools = name.startswith("pooled_") or name in {
        "entropy", "local_entropy", "probability", "uncertainty"
    }  # fmt: skip
    return name == "footprint" or (pools and env.fusion.version is Version.PLAIN)


def assert_same_mission(
    env: MissionEnvironment,
    builder: ObservationBuilder,
    state: MissionState,
    e: int,
    team: Tensor,
    other: tuple[MissionEnvironment, ObservationBuilder, MissionState],
    keys: Tensor,
    but: str = "",
) -> None:
    """Compare one mission of a batch, before its next move, with that mission by itself."""
    single, own_builder, own = other
    found = part(state, e, team)
    for name, tensor in own.tensors():
        same(getattr(found, name), tensor, name, of_products(env, name))
    actions, masks = choose(env, state, keys)
    own_actions, own_masks = choose(single, own, keys[e : e + 1, team])
    same(actions[e : e + 1, team], own_actions, "actions")
    same(masks[e : e + 1, team], own_masks, "masks")
    for names, maps, own_maps in (
        (builder.actor_channels, builder.actor(state), own_builder.actor(own)),
        (
            builder.critic_channels[len(builder.actor_channels) :],
            builder.critic_only(state, actions),
            own_builder.critic_only(own, own_actions),
        ),
    ):
        for k, name in enumerate(names):
            if name != but:
                same(maps[e, team, k], own_maps[0, :, k], name, of_products(env, name))
    shared, own_shared = builder.team(state), own_builder.team(own)
    for k, name in enumerate(builder.team_channels):
        same(shared[e, k], own_shared[0, k], name, of_products(env, name))


def fly_and_compare(env: MissionEnvironment, prepare: Prepare, seed: int) -> None:
    """Fly different missions at once, and each by itself with the same draws."""
    builder = prepare(env)
    generator = torch.Generator().manual_seed(seed)
    env.generator.manual_seed(seed)
    draws = env.draw_reset()
    state = env.reset(draws)
    sizes, budgets = state.active.sum(1).tolist(), state.budget.tolist()
    teams = [torch.arange(size) for size in sizes]
    others = []
    for e, team in enumerate(teams):
        single, own_builder = alone(env, len(team), budgets[e], prepare)
        others.append((single, own_builder, single.reset(reset_of_mission(draws, e, team))))
    for t in range(env.episode_length):
        keys = torch.rand(env.num_envs, env.n_agents, env.lattice.num_actions, generator=generator)
        over = [not flying for flying in state.active.any(1).tolist()]
        for e, team in enumerate(teams):
            if not over[e]:
                assert_same_mission(env, builder, state, e, team, others[e], keys)
        before, actions, step = state.clone(), choose(env, state, keys)[0], env.draw_step()
        result = env.step(state, actions, step)
        for e, team in enumerate(teams):
            assert over[e] or t <= budgets[e]
            at = slice(e, e + 1)
            if over[e]:
                assert result.reward[e] == result.absolute[e] == result.relative[e] == 0
                assert result.terminated[e]
                assert not state.active[e].any()
                for name, tensor in part(before, e, team).tensors():
                    if name != "heard":
                        rounded = of_products(env, name)
                        same(getattr(part(state, e, team), name), tensor, name, rounded)
                continue
            single, _, own = others[e]
            expected = single.step(
                own, choose(single, own, keys[at, team])[0], of_mission(step, e, team)
            )
            for name in ("reward", "absolute", "relative", "terminated"):
                same(getattr(result, name)[at], getattr(expected, name), name)
    assert not state.active.any()
