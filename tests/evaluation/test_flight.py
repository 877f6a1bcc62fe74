"""Flights against a replay by hand; missions that depend on nothing but their number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.evaluation import flight, metrics
from marl_framework.evaluation.flight import (
    FlightRecord,
    MissionStreams,
    _mission_seed,
    combined,
    evaluate,
    fly,
    planner_generator,
    validate,
)
from marl_framework.evaluation.report import final_values
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.seeding import split_seed
from marl_framework.mission.state import ResetDraws, StepDraws
from marl_framework.planners import (
    InformationGainPlanner,
    Planner,
    RandomPlanner,
)
from marl_framework.planners.registry import make_planner
from tests.mission.mixed import of_mission, reset_of_mission
from tests.small import small_config
from tests.soaking import in_soak


def flight_config(*kinds: str, lost_frames: float = 0.0) -> Config:
    """5 × 4 × 3 positions, 34 × 25 cells, 5 moves of 3 UAVs, a radio that fails."""
    return small_config(
        pixels=(10, 10),
        dims=(20.0, 15.0),
        prior=0.4,
        uav={"communication_range": (0.0, 15.0, 25.0, 100.0), "failure_rate": 0.3},
        sensor={
            "simulation": {"kinds": kinds or ("split", "random_field")},
            "reality": {"lost_frames": lost_frames},
        },
    )


def make(
    num_envs: int, split: str = "test", lost_frames: float = 0.0
) -> tuple[MissionEnvironment, Planner]:
    env = MissionEnvironment(flight_config(lost_frames=lost_frames), num_envs, "cpu", split)
    return env, InformationGainPlanner(env.lattice, env.camera)


def same(a: FlightRecord, b: FlightRecord) -> None:
    for name, values in a.metrics.items():
        torch.testing.assert_close(values, b.metrics[name], rtol=0, atol=1e-6)
    for name in ("positions", "footprints", "altitude_shares", "path_length", "truth"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    torch.testing.assert_close(a.episode_return, b.episode_return, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lost_frames", [0.0, 0.5])
def test_a_flight_equals_a_replay_by_hand(lost_frames: float) -> None:
    env, planner = make(2, lost_frames=lost_frames)
    record = fly(env, planner, torch.Generator(), MissionStreams(env, 5))
    draws = MissionStreams(env, 5)
    state = env.reset(draws.draw_reset())
    seen, in_view = np.zeros((2, 2, *env.camera.shape), dtype=bool)
    reward, absolute, length = np.zeros(2), np.zeros(2), np.zeros(2)
    heights = np.zeros((2, 3))
    scale = env.config.experiment.reward
    for reading in range(env.episode_length + 1):
        fp = env.camera.footprint(state.positions)
        own = record.footprints[:, reading]
        for e in range(2):
            for n in range(env.n_agents):
                rows, cols = (
                    slice(low[e, n].item(), high[e, n].item())
                    for low, high in ((fp.row0, fp.row1), (fp.col0, fp.col1))
                )
                in_view[e, rows, cols] = True
                corner = fp.window_row[e, n].item(), fp.window_col[e, n].item()
                for cell in np.argwhere(state.readings[e, n].numpy() != 0):
                    seen[e, *(corner + cell)] = True
                box = [rows.start, rows.stop, cols.start, cols.stop]
                assert own[e, n].tolist() == (box if state.readings[e, n].any() else [0] * 4)
                heights[e, state.positions[e, n, 2]] += 1
        found = metrics.map_metrics(state.global_belief, state.truth, torch.tensor(seen))
        for name, expected in found.items():
            torch.testing.assert_close(record.metrics[name][:, reading + 1], expected)
        covered = record.metrics["coverage"][:, reading + 1].numpy()
        np.testing.assert_allclose(covered, seen.mean(axis=(1, 2)), rtol=1e-6)
        assert torch.equal(record.positions[:, reading], state.positions)
        if reading == env.episode_length:
            break
        before = env.lattice.metres(state.positions)
        result = env.step(state, planner.act(state, torch.Generator())[0], draws.draw_step())
        moved = env.lattice.metres(state.positions) - before
        for e in range(2):
            length[e] += sum(math.hypot(*moved[e, n].tolist()) for n in range(env.n_agents))
        reward += result.reward.numpy()
        absolute += scale.absolute_scale * result.absolute.numpy() + scale.absolute_offset
    np.testing.assert_allclose(record.episode_return.numpy(), reward, rtol=1e-5)
    np.testing.assert_allclose(record.absolute_return.numpy(), absolute, rtol=1e-5)
    np.testing.assert_allclose(record.path_length.numpy(), length, rtol=1e-6)
    shares = heights / heights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(record.altitude_shares.numpy(), shares, rtol=1e-6)
    assert np.array_equal(seen, in_view) == (lost_frames == 0)
    assert torch.equal(record.belief, state.global_belief)
    assert torch.equal(record.truth, state.truth)


def test_round_zero_is_before_any_reading() -> None:
    env, planner = make(3)
    record = evaluate(env, planner, 3, 1)
    assert {v.shape for v in record.metrics.values()} == {(3, env.episode_length + 2)}
    prior = 0.4
    entropy = -(prior * math.log2(prior) + (1 - prior) * math.log2(1 - prior))
    torch.testing.assert_close(record.metrics["roi_entropy"][:, 0], torch.full((3,), entropy))
    assert torch.equal(record.metrics["coverage"][:, 0], torch.zeros(3))
    assert torch.equal(record.metrics["f1"][:, 0], torch.zeros(3))
    assert (record.metrics["coverage"][:, 1] > 0).all()
    assert (record.metrics["coverage"].diff(dim=1) >= 0).all()


def test_without_curves_metrics_are_those_of_the_last_reading() -> None:
    full, last = (
        evaluate(*make(3, lost_frames=0.4), 5, 7, curves=curves) for curves in (True, False)
    )
    for name, values in full.metrics.items():
        assert torch.equal(last.metrics[name], values[:, -1:]), name
    assert torch.equal(last.film, full.film[:, -1:])


def test_only_completed_maps_need_the_noise_of_the_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "CameraNoise", None)
    assert evaluate(*make(1), 1, 7).completed is None


@pytest.mark.parametrize("num_envs", [1, 2, 4, 7])
def test_missions_do_not_depend_on_the_batch_size(num_envs: int) -> None:
    env, planner = make(5)
    one_batch = evaluate(env, planner, 5, 77, keep_maps=3)
    env, planner = make(num_envs)
    same(evaluate(env, planner, 5, 77, keep_maps=3), one_batch)
    assert len(one_batch.truth) == len(one_batch.belief) == 3


def test_every_planner_flies_the_same_missions() -> None:
    env, planner = make(3)
    ours = evaluate(env, planner, 3, 4, keep_maps=3)
    theirs, again = (evaluate(env, RandomPlanner(env.lattice), 3, 4, keep_maps=3) for _ in range(2))
    same(theirs, again)
    assert torch.equal(ours.truth, theirs.truth)
    assert torch.equal(ours.positions[:, 0], theirs.positions[:, 0])
    assert not torch.equal(ours.positions, theirs.positions)
    first = [record.metrics["mll"][:, :2] for record in (ours, theirs)]
    assert torch.equal(*first)  # the noise of the first reading is the same too


def test_seed_and_split_decide_the_missions() -> None:
    env, planner = make(4)
    flown = [
        evaluate(env, planner, 4, seed, split, keep_maps=4)
        for seed, split in ((1, "test"), (1, "test"), (2, "test"), (1, "validation"))
    ]
    same(flown[0], flown[1])
    assert not torch.equal(flown[0].truth, flown[2].truth)
    assert not torch.equal(flown[0].truth, flown[3].truth)
    assert not torch.equal(flown[0].truth[0], flown[0].truth[1])


def test_mission_seeds_never_meet_each_other_or_training() -> None:
    seeds = [
        _mission_seed(seed, split, number)
        for seed in (0, 7)
        for split in ("validation", "test")
        for number in range(3000)
    ]
    training = {split_seed(s, "training", rank) for s in range(12) for rank in range(1024)}
    env, _ = make(1)
    planners = {planner_generator(env, s, "test").initial_seed() for s in range(12)}
    assert len(set(seeds)) == len(seeds)
    assert not training & set(seeds)
    assert not planners & set(seeds)


@pytest.mark.parametrize("mixed", [False, True])
def test_validation_equals_the_evaluation_of_its_split_and_touches_no_generator(
    mixed: bool,
) -> None:
    config = flight_config()
    if mixed:
        config = small_config(agents=(2, 5), budget=(2, 4), uav={"failure_rate": (0.0, 0.5)})
    env, training = (MissionEnvironment(config, 3, "cpu", s) for s in ("validation", "training"))
    planner = InformationGainPlanner(env.lattice, env.camera)
    generators = (env.generator, training.generator, torch.default_generator)
    states = [generator.get_state() for generator in generators]
    found, again = validate(env, planner), validate(env, planner)
    assert all(map(torch.equal, states, (generator.get_state() for generator in generators)))
    record = evaluate(env, planner, 3, config.environment.seed, "validation")
    assert all(values.equal(again[name]) for name, values in found.items())
    torch.testing.assert_close(found["roi_entropy"], record.metrics["roi_entropy"][:, -1])
    assert torch.equal(found["f1"], record.metrics["f1"][:, -1])
    torch.testing.assert_close(found["return"], record.episode_return)


def test_an_evaluation_needs_a_mission() -> None:
    env, planner = make(1)
    with pytest.raises(ValueError, match="missions"):
        evaluate(env, planner, 0, 1)


class MetaDraws:
    """Draws without values: whoever reads one back to the host fails."""

    def __init__(self, env: MissionEnvironment) -> None:
        self._env = env

    def draw_reset(self) -> ResetDraws:
        return combined([self._env.draw_reset()], lambda parts: parts[0].to("meta"))

    def draw_step(self) -> StepDraws:
        return combined([self._env.draw_step()], lambda parts: parts[0].to("meta"))


@pytest.mark.parametrize("name", ["information_gain", *in_soak("coverage", "oracle")])
def test_a_flight_reads_nothing_back(name: str) -> None:
    config = flight_config("split")
    source = MissionEnvironment(config, 2, "cpu", "test")
    env = MissionEnvironment(config, 2, "meta", "test")
    record = fly(env, make_planner(name, env), torch.Generator(), MetaDraws(source))
    assert record.metrics["roi_entropy"].shape == (2, env.episode_length + 2)
    assert record.belief.device.type == "meta"


# Missions that differ in team and budget ---------------------------------------------------

MIXED: dict[str, Any] = {
    "agents": (2, 5),
    "budget": (2, 4),
    "uav": {"communication_range": (0.0, 15.0), "failure_rate": (0.0, 0.5)},
}


class Recorded:
    def __init__(self, env: MissionEnvironment) -> None:
        self._draws = MissionStreams(env, 5)
        self.resets: list[ResetDraws] = []
        self.steps: list[StepDraws] = []

    def draw_reset(self) -> ResetDraws:
        self.resets.append(self._draws.draw_reset())
        return self.resets[-1]

    def draw_step(self) -> StepDraws:
        self.steps.append(self._draws.draw_step())
        return self.steps[-1]


class OfOne:
    def __init__(self, recorded: Recorded, e: int, team: torch.Tensor) -> None:
        self._recorded, self._e, self._team = recorded, e, team
        self._steps = iter(recorded.steps)

    def draw_reset(self) -> ResetDraws:
        return reset_of_mission(self._recorded.resets[0], self._e, self._team)

    def draw_step(self) -> StepDraws:
        return of_mission(next(self._steps), self._e, self._team)


def flown(planner: str, env: MissionEnvironment, draws: Any) -> FlightRecord:
    return fly(env, make_planner(planner, env, None, True), torch.Generator(), draws)


@pytest.mark.parametrize("planner", ["coverage", "information_gain", "oracle"])
def test_each_mission_is_flown_as_if_it_were_alone(planner: str) -> None:
    env = MissionEnvironment(small_config(**MIXED), 8, "cpu", "test")
    draws = Recorded(env)
    record = flown(planner, env, draws)
    assert {len(record.alone(e).path[0]) for e in range(8)} == {4, 6}
    for e in range(8):
        own = record.alone(e)
        readings, agents = own.active.shape[1:]
        config = env.config.of_mission(agents, readings - 2)
        rate = (0.0, 0.5)[int(draws.resets[0].failure_rate[e])]  # type: ignore[index]
        config = with_changes(config, {"experiment": {"uav": {"failure_rate": rate}}}, "test")
        single = MissionEnvironment(config, 1, "cpu", "test")
        expected = flown(planner, single, OfOne(draws, e, torch.arange(agents)))
        assert own.positions.equal(expected.positions)
        assert own.footprints.equal(expected.footprints)
        for name, values in expected.metrics.items():
            torch.testing.assert_close(own.metrics[name], values, rtol=0, atol=1e-6)
        for name, values in final_values(expected).items():
            torch.testing.assert_close(final_values(own)[name], values, rtol=1e-5, atol=1e-5)
        # What comes after the last move changes nothing.
        last = {name: values[e, readings:] for name, values in record.metrics.items()}
        assert all((values == values[:1]).all() for values in last.values())
