from __future__ import annotations

import numpy as np
import pytest
import torch

from marl_framework.kernels.cells import bayes_update, weighted_entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.radio import hear
from marl_framework.mission.seeding import MAX_RANK, MAX_SEED, SPLITS, split_seed
from marl_framework.observations.builder import ObservationBuilder
from tests.mission.asymmetric import ASYMMETRIC
from tests.small import meta_draws, random_actions, small_config
from tests.soaking import in_soak

RANGES = (0.0, 15.0, 25.0, 100.0)


def fly(env, moves, seed=0):
    """Yield the state after the reset and after each of `moves` random steps, with its result."""
    generator = torch.Generator().manual_seed(seed)
    state = env.reset()
    yield state, None
    for _ in range(moves):
        actions = random_actions(env, state, generator)
        yield state, env.step(state, actions)


def readings_on_the_map(env, state):
    """Return the latest readings as full maps [E, N, R, C] of signs."""
    maps = torch.zeros(*state.readings.shape[:2], *env.camera.shape, dtype=torch.int8)
    index = env.camera.window_index(env.camera.footprint(state.positions))
    maps.flatten(2).scatter_(2, index, state.readings.flatten(2))
    return maps


@pytest.mark.parametrize(
    "options",
    [
        {"agents": 4},
        {"agents": 1, "actions": 4},
        {"agents": 6, "actions": 27, "dims": (20.0, 30.0), "pixels": (9, 14)},
        {"agents": 5, "prior": 0.3, "uav": {"failure_rate": 0.4, "communication_range": 15.0}},
        {"agents": 16, "actions": 9, "max_altitude": 25.0, "uav": {"communication_range": RANGES}},
        {"agents": 4, "prior": 0.4, "sensor": ASYMMETRIC},
    ],
)
def test_a_step_equals_full_map_updates_one_uav_at_a_time(options):
    config = small_config(**options)  # the loops; plain operators are compared with them elsewhere
    env = MissionEnvironment(config, 3, "cpu")
    prior = config.mapping.prior
    own = torch.full((3, env.n_agents, *env.camera.shape), prior)
    shared = torch.full((3, *env.camera.shape), prior)
    for state, result in fly(env, 5):
        odds = env.camera.odds[state.positions[..., 2]].unsqueeze(-2).unsqueeze(-2)
        readings = readings_on_the_map(env, state)
        before = shared.clone()
        for j in range(env.n_agents):
            shared = bayes_update(shared, readings[:, j], odds[:, j], prior)
        for i in range(env.n_agents):
            own[:, i] = bayes_update(own[:, i], readings[:, i], odds[:, i], prior)
            for j in range(env.n_agents):
                signs = readings[:, j] * (state.heard[:, i, j] & (i != j)).view(-1, 1, 1)
                own[:, i] = bayes_update(own[:, i], signs, odds[:, j], prior)
        torch.testing.assert_close(state.global_belief, shared)
        torch.testing.assert_close(state.beliefs, own)
        if result is not None:
            w = torch.where(shared > 0.501, 1.0, torch.where(shared < 0.499, 0.0, 0.5))
            h = [
                -(p * p.log2() + (1 - p) * (1 - p).log2())
                for p in (m.double().clamp(1e-4, 1 - 1e-4) for m in (before, shared))
            ]
            absolute = (w * (h[0] - h[1])).mean((1, 2))
            relative = absolute / (w * h[0]).mean((1, 2))
            torch.testing.assert_close(result.absolute.double(), absolute, rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(result.relative.double(), relative, rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(result.reward, 22 * result.relative - 0.5)


def test_pooled_maps_and_sums_stay_up_to_date():
    config = small_config(agents=4, prior=0.4, observation={"uncertainty": True})
    env = MissionEnvironment(config, 3, "cpu")
    for state, _ in fly(env, 20):
        kept = state.clone()
        env.refresh(state)
        for name in ("beliefs", "global", "uncertainty", "global_uncertainty"):
            found, expected = (getattr(each, f"pooled_{name}") for each in (kept, state))
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-6, msg=name)
        torch.testing.assert_close(kept.weighted_entropy, state.weighted_entropy, rtol=1e-6, atol=0)


def test_a_masked_reset_leaves_the_others_bit_for_bit():
    config = small_config(agents=3, uav={"communication_range": RANGES})
    env = MissionEnvironment(config, 5, "cpu")
    *_, (state, _) = fly(env, 3)
    before = state.clone()
    mask = torch.tensor([True, False, True, False, False])
    fresh = env.draw_reset()
    same = env.reset(fresh, state, mask)
    assert same is state
    new = env.reset(fresh)
    for name, tensor in state.tensors():
        assert torch.equal(tensor[~mask], getattr(before, name)[~mask]), name
        torch.testing.assert_close(tensor[mask], getattr(new, name)[mask], msg=name)
    assert not torch.equal(state.truth[mask], before.truth[mask])


def test_a_reset_in_the_same_buffers_equals_a_new_one():
    first, second = (MissionEnvironment(small_config(), 4, "cpu") for _ in range(2))
    *_, (used, _) = fly(first, 3)
    draws = second.draw_reset()
    for name, tensor in first.reset(draws, used).tensors():
        assert torch.equal(tensor, getattr(second.reset(draws), name)), name


def test_the_same_seed_flies_the_same_missions_and_another_seed_others():
    flights = []
    for seed, split in ((3, "training"), (3, "training"), (4, "training"), (3, "validation")):
        env = MissionEnvironment(small_config(seed=seed), 2, "cpu", split)
        *_, (state, _) = fly(env, 2)
        flights.append(state.beliefs)
    assert torch.equal(flights[0], flights[1])
    assert not torch.equal(flights[0], flights[2])
    assert not torch.equal(flights[0], flights[3])


def test_hearing_by_distance_in_three_dimensions_and_by_luck():
    metres = torch.tensor([[[0.0, 0.0, 5.0], [15.0, 20.0, 5.0], [15.0, 20.0, 15.0]]])
    nothing_fails = torch.zeros(1, 3, 3, dtype=torch.bool)
    heard = hear(metres, torch.tensor([25.0]), nothing_fails)
    # 0 and 1 are exactly 25 m apart; 0 and 2 are sqrt(725) m apart; 1 and 2 are 10 m apart.
    assert heard[0].tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    alone = hear(metres, torch.tensor([0.0]), nothing_fails)
    assert torch.equal(alone[0], torch.eye(3, dtype=torch.bool))
    assert hear(metres, torch.tensor([torch.inf]), nothing_fails).all()
    lost = torch.tensor([[[True, False], [True, True]]])  # each UAV hears itself
    heard = hear(torch.zeros(1, 2, 3), torch.tensor([1.0]), lost)
    assert heard[0].tolist() == [[True, True], [False, True]]


def test_missions_end_after_budget_plus_one_moves():
    env = MissionEnvironment(small_config(budget=3), 2, "cpu")
    ends = [result.terminated.tolist() for _, result in fly(env, 4) if result is not None]
    assert ends == [[False, False]] * 3 + [[True, True]]


def test_reused_draws_are_the_same_draws_in_the_same_memory():
    fresh, reusing = (MissionEnvironment(small_config(), 3, "cpu") for _ in range(2))
    places = set()
    for _ in range(3):
        draws = reusing.draw_step(reuse=True)
        places.add(draws.sensor.data_ptr())
        assert torch.equal(draws.sensor, fresh.draw_step().sensor)
    assert len(places) == 1


def test_sensor_draws_are_uniform_16_bit_integers():
    env = MissionEnvironment(small_config(agents=4), 64, "cpu")
    bits = env.draw_step().sensor
    counts = np.bincount((bits.flatten().int() + 2**15).numpy() >> 12, minlength=16)
    expected = bits.numel() / 16
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
    # Each 16-bit quarter of the 64-bit words is uniform, the top one too.
    for k in range(4):
        negative = (bits.flatten()[k::4] < 0).double().mean()
        assert abs(negative - 0.5) < 0.01


def step_and_observe(env, builder):
    def transition(state, actions, draws):
        result = env.step(state, actions, draws)
        observation = builder.actor(state)
        return result.reward, observation, builder.critic(state, actions, observation)

    return transition


@pytest.mark.parametrize("options", [{"agents": 4}, *in_soak({"agents": 5, "actions": 27})])
def test_the_compiler_accepts_the_step_with_its_observation_whole(options):
    env = MissionEnvironment(small_config(compute={"compile": False}, **options), 3, "cpu")
    builder = ObservationBuilder(env.config, env.lattice, env.camera)
    state = env.reset()
    actions = random_actions(env, state, torch.Generator().manual_seed(0))
    draws = env.draw_step()
    copy = state.clone()
    torch._dynamo.reset()
    compiled = torch.compile(step_and_observe(env, builder), fullgraph=True, backend="eager")
    for got, expected in zip(
        compiled(copy, actions, draws),
        step_and_observe(env, builder)(state, actions, draws),
        strict=True,
    ):
        assert torch.equal(got, expected)
    for name, tensor in state.tensors():
        assert torch.equal(getattr(copy, name), tensor), name


def test_step_and_observation_run_on_the_meta_device():
    """Every read-back to the host raises there."""
    env = MissionEnvironment(small_config(agents=4), 3, "meta")
    builder = ObservationBuilder(env.config, env.lattice, env.camera)
    state = env.empty_state()
    actions, masks = env.lattice.choose_in_order(
        state.positions, lambda i, mask: mask.to(torch.float32).argmax(-1)
    )
    reward, observation, critic = step_and_observe(env, builder)(state, actions, meta_draws(env))
    assert reward.shape == (3,)
    assert masks.shape == (3, 4, 6)
    assert observation.shape == (3, 4, 7, 7, 7)
    assert critic.shape == (3, 4, 12, 7, 7)
    assert weighted_entropy(observation).device.type == "meta"


def test_neighbouring_streams_never_collide() -> None:
    seeds = [
        split_seed(seed, split, rank)
        for base in (0, MAX_SEED - 12)
        for seed in range(base, base + 12)
        for split in SPLITS
        for rank in range(MAX_RANK)
    ]
    assert len(set(seeds)) == len(seeds) == 2 * 12 * 3 * MAX_RANK
    assert 0 <= min(seeds) <= max(seeds) < 2**32


@pytest.mark.parametrize(
    ("seed", "split", "rank"),
    [(-1, "test", 0), (MAX_SEED, "test", 0), (0, "test", -1), (0, "test", MAX_RANK), (0, "x", 0)],
)
def test_values_out_of_range_are_refused(seed: int, split: str, rank: int) -> None:
    with pytest.raises(ValueError, match=r"split|seed|rank"):
        split_seed(seed, split, rank)


@pytest.mark.parametrize(
    ("config", "num_envs", "named"),
    [("params_test.yaml", 1, "^config.*load_config"), (small_config(), 0, "^num_envs 0")],
)
def test_invalid_arguments_are_named(config, num_envs, named):
    with pytest.raises((TypeError, ValueError), match=named):
        MissionEnvironment(config, num_envs, "cpu")
