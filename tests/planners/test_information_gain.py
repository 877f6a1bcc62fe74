"""Expected gains against plain loops over cells and readings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sensor import entropy_left, reading_odds
from marl_framework.mission.state import MissionState
from marl_framework.planners import InformationGainPlanner
from marl_framework.planners.information_gain import expected_gain
from tests.mission.asymmetric import ASYMMETRIC
from tests.planners.missions import flown, in_view
from tests.small import small_config


def h(p: float) -> float:
    p = min(max(p, 1e-4), 1 - 1e-4)
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def cell_gain(p: float, rates: list[float], prior: float) -> float:
    total, (miss, false_alarm) = 0.0, rates
    for of_roi, of_rest in ((1 - miss, false_alarm), (miss, 1 - false_alarm)):
        probability = p * of_roi + (1 - p) * of_rest
        q = min(max(p, 1e-4), 1 - 1e-4)
        for_roi = q * of_roi * (1 - prior)
        against = (1 - q) * of_rest * prior
        after = for_roi / (for_roi + against)
        weight = 1.0 if after > 0.501 else 0.5 if after >= 0.499 else 0.0
        total += probability * weight * (h(p) - h(after))
    return total


@pytest.mark.parametrize("prior", [0.5, 0.3])
def test_the_gain_of_a_cell_is_its_definition(prior: float) -> None:
    beliefs = torch.tensor([0.0, 1e-5, 0.01, 0.2, 0.375, 0.47, 0.5, 0.6, 0.735, 0.99, 1.0])
    for rates in ([0.01, 0.01], [0.265, 0.265], [0.499, 0.499], [0.3, 0.02], [0.01, 0.9]):
        known = torch.tensor([rates]).double()
        odds = reading_odds(known) * ((1 - prior) / prior)
        found = expected_gain(beliefs.double(), known, odds)
        expected = [cell_gain(p, rates, prior) for p in beliefs.tolist()]
        torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-5, atol=1e-6)


def some_missions(sensor: dict[str, Any] | None = None) -> tuple[MissionEnvironment, MissionState]:
    config = small_config(
        pixels=(7, 7),
        dims=(20.0, 15.0),
        prior=0.4,
        uav={"communication_range": 12.0},
        sensor=sensor or {},
    )
    env = MissionEnvironment(config, 3, "cpu", "test")
    return env, flown(env)


@pytest.mark.parametrize("version", [Version.PLAIN, Version.LOOPS])
@pytest.mark.parametrize("sensor", [{}, ASYMMETRIC])
@pytest.mark.parametrize("communication", [True, False])
def test_scores_equal_loops_over_cells(
    communication: bool, sensor: dict[str, Any], version: Version
) -> None:
    env, state = some_missions(sensor)
    assert state.heard.any(2).sum() > 0
    planner = InformationGainPlanner(env.lattice, env.camera, communication, version)
    goals = env.lattice.nearest_destinations(state.positions)
    chosen = [goals[:, 0, 3], goals[:, 1, 5]]
    allowed = env.lattice.boundary_mask(state.positions)[:, 2]
    assert not allowed.all()
    found = planner.scores(state, 2, goals[:, 2], chosen, allowed)
    rates, kept = env.camera.error_rates.tolist(), entropy_left(env.camera.error_rates)
    for e in range(3):
        others = [j for j in range(2) if communication and state.heard[e, 2, j]]
        for a in range(6):
            total = 0.0
            factors = torch.ones(state.beliefs.shape[2:])
            for j in others:
                factors[in_view(env, *chosen[j][e].tolist())] *= kept[chosen[j][e, 2]]
            view = in_view(env, *goals[e, 2, a].tolist())
            beliefs, altitude = state.beliefs[e, 2][view].flatten().tolist(), goals[e, 2, a, 2]
            for p, factor in zip(beliefs, factors[view].flatten().tolist(), strict=True):
                total += factor * cell_gain(p, rates[altitude], 0.4)
            wanted = total if allowed[e, a] else 0.0
            assert found[e, a].item() == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_the_best_allowed_action_is_taken() -> None:
    env, state = some_missions()
    planner = InformationGainPlanner(env.lattice, env.camera)
    actions, masks, _, reported = planner.act(state, env.generator)
    goals = env.lattice.nearest_destinations(state.positions)
    after = env.lattice.move(state.positions, actions)
    for i in range(3):
        chosen = [after[:, j] for j in range(i)]
        scores = planner.scores(state, i, goals[:, i], chosen, masks[:, i])
        best = scores.masked_fill(~masks[:, i], -torch.inf).argmax(-1)
        assert torch.equal(actions[:, i], best)
        torch.testing.assert_close(reported[:, i], scores, rtol=0, atol=0.006)
    flown = reported.masked_fill(~masks, -torch.inf).argmax(-1)
    assert torch.equal(flown, actions)


def test_actions_that_rounding_alone_tells_apart_are_reported_as_equal() -> None:
    class Rising(InformationGainPlanner):
        def scores(self, state: MissionState, *_: Any) -> torch.Tensor:
            return torch.linspace(1.0, 1.0001, env.lattice.num_actions).expand(len(state.t), -1)

    env, state = some_missions()
    planner = Rising(env.lattice, env.camera)
    actions, masks, _, reported = planner.act(state, env.generator)
    assert torch.equal(actions, masks.int().argmax(-1))  # the first that is allowed
    assert torch.equal(reported.masked_fill(~masks, -torch.inf).argmax(-1), actions)


def test_uavs_that_hear_each_other_do_not_look_at_the_same_ground() -> None:
    """Two UAVs beside one patch of doubt: the second one leaves it to the first."""
    config = small_config(pixels=(8, 8), dims=(30.0, 30.0), agents=2, max_altitude=5.0, actions=4)
    env = MissionEnvironment(config, 1, "cpu", "test")
    state = env.reset()
    state.positions[0] = torch.tensor([[2, 3, 0], [3, 4, 0]])
    state.beliefs.fill_(0.02)
    # Below both: +x of the first, −y of the second.
    state.beliefs[..., *in_view(env, 3, 3, 0)] = 0.5
    state.beliefs[:, :, -9:, -9:] = 0.4
    planner = InformationGainPlanner(env.lattice, env.camera)
    goals = env.lattice.destinations(state.positions)
    chosen, allowed = [torch.tensor([[3, 3, 0]])], torch.ones(1, 4, dtype=torch.bool)
    scores = []
    for hears, active in ((True, True), (False, True), (True, False)):
        state.heard.fill_(hears)
        state.active[:, 0] = active
        scores.append(planner.scores(state, 1, goals[:, 1], chosen, allowed))
    heard, unheard, inactive = scores
    assert inactive.equal(unheard)
    assert unheard.argmax().item() == 1
    assert heard[0, 1] < 0.1 * unheard[0, 1]
    assert planner.act(state, env.generator)[0][0, 0].item() == 3
