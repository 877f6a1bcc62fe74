"""The search planner: plans on the map that each UAV expects, and on the plans of the others."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.mission import SearchConfig
from marl_framework.evaluation import comparison
from marl_framework.evaluation.flight import evaluate
from marl_framework.kernels.cells import entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import predictor_state
from marl_framework.planners.registry import make_planner
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.models import PredictedMap
from marl_framework.planners.search.planner import SearchPlanner
from marl_framework.planners.search.problem import Plan, Problem
from marl_framework.runs.checkpoint import save_checkpoint
from tests.planners.missions import flown, in_view
from tests.small import small_config


def environment(missions: int = 3, **settings: Any) -> MissionEnvironment:
    return MissionEnvironment(small_config(**settings), missions, "cpu", "test")


def untrained() -> MapPredictor:
    torch.manual_seed(1)
    return MapPredictor(8)


def planner_of(env: MissionEnvironment) -> SearchPlanner:
    view = LatticeView(env.config, env.lattice, PARTS)
    settings = SearchConfig(beams=4)
    model = PredictedMap(view, untrained(), "float32")
    return SearchPlanner("search", view, model, BeamSearch(view, 4), settings)


def searching(tmp_path: Path, **search: Any) -> MissionEnvironment:
    file = tmp_path / "predictor.pt"
    save_checkpoint(file, predictor_state(untrained(), 8))
    experiment = small_config().model_dump()["experiment"]
    experiment["baselines"]["search"] |= {"predictor": str(file), **search}
    return environment(experiment=experiment)


def test_sums_and_parts_are_those_of_the_nearest_positions() -> None:
    env = environment(pixels=(11, 13), dims=(30.0, 20.0))
    view = LatticeView(env.config, env.lattice, PARTS)
    shape, (x, y, _) = env.config.geometry.map_shape, env.lattice.shape
    maps, nearest, parts = torch.rand(shape), [], []
    for cells, number, size in zip(shape, (x, y), env.config.geometry.cell_size, strict=True):
        middle, step = torch.arange(cells) + 0.5, 5.0 / size
        at = (middle.unsqueeze(1) - torch.arange(number) * step).abs().argmin(1)
        low = (at - 0.5).mul(step).clamp(min=0)
        high = (at + 0.5).mul(step).where(at < number - 1, float(cells)).clamp(max=cells)
        nearest.append(at)
        parts.append(PARTS * at + ((middle - low) / (high - low) * PARTS).long())

    def total(shape: tuple[int, int], at: list[Tensor], values: Tensor) -> Tensor:
        index = at[0].unsqueeze(1), at[1]
        return torch.zeros(shape).index_put(index, values, accumulate=True)

    sums = total((x, y), nearest, maps) * (x * y / maps.numel())
    torch.testing.assert_close(view.sums(maps), sums)
    fine, cells = (total((PARTS * x, PARTS * y), parts, each) for each in (maps, maps * 0 + 1))
    torch.testing.assert_close(view.fine(maps), fine / cells.clamp(min=1))


def test_it_never_reads_the_truth_and_flies_missions_at_once_as_each_alone() -> None:
    env = environment(missions=4)
    state = flown(env)
    together = planner_of(env).act(state, env.generator)
    state.truth.logical_not_()
    state.global_belief.fill_(0.5)
    for e in range(4):
        alone = planner_of(env).act(state[e : e + 1], env.generator)
        assert torch.equal(alone.actions[0], together.actions[e])
        assert torch.equal(alone.masks[0], together.masks[e])


@pytest.mark.parametrize("dims", [(30.0, 30.0), (20.0, 45.0)])
@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_prediction_is_a_share_of_the_open_entropy(
    dims: tuple[float, float], weight: float
) -> None:
    env = environment(dims=dims)
    state = flown(env)
    view = LatticeView(env.config, env.lattice, PARTS)
    inside = PredictedMap(view, untrained(), "float32").left(state)
    left = PredictedMap(view, untrained(), "float32", weight).left(state)
    everything = view.sums(entropy(state.beliefs))
    assert left.shape == (3, 3, *env.lattice.shape[:2])
    assert (inside >= 0).all()
    assert (inside <= everything + 1e-6).all()
    torch.testing.assert_close(left, inside + weight * (everything - inside))


def test_doubt_is_open_entropy_whose_kind_is_open() -> None:
    env = environment()
    state = flown(env)
    view = LatticeView(env.config, env.lattice, PARTS)
    inside = PredictedMap(view, untrained(), "float32").left(state).double()
    everything = view.sums(entropy(state.beliefs)).double()
    share = (inside / everything).clamp(1e-4, 1 - 1e-4)
    unsure = -(share * share.log2() + (1 - share) * (1 - share).log2())
    doubt = PredictedMap(view, untrained(), "float32", doubt=True).left(state)
    torch.testing.assert_close(doubt.double(), everything * unsure, atol=1e-5, rtol=1e-4)


def test_a_search_for_the_map_completes_more_of_it() -> None:
    found = {}
    for target in ("roi", "map"):
        key = f"experiment.baselines.search.target={target}"
        config = load_config("params_fast.yaml", [key, "sensor.simulation.kinds=[landscape]"])
        flights = comparison.prepare(config, torch.device("cpu"), ["search"], 16, 102)
        found[target] = flights.fly()["search"].metrics["completed_f1"].mean()
    assert found["map"] > found["roi"] + 0.01


class BeliefMap:
    """Takes each UAV's own belief for what there is: p·H(p) of every cell."""

    knows_all_plans = False

    def __init__(self, view: LatticeView) -> None:
        self._view = view

    def left(self, state: MissionState) -> Tensor:
        return self._view.sums(state.beliefs * entropy(state.beliefs))


def pair_steps(
    starts: list[list[int]], patches: list[tuple[int, float]], heard: bool, share: float
) -> list[int]:
    """Steps along x of two UAVs over patches of doubt at some x, of some probability."""
    env = environment(missions=1, agents=2, budget=3, dims=(50.0, 20.0), max_altitude=5.0)
    view, state = LatticeView(env.config, env.lattice), flown(env, 0)
    state.positions[0] = torch.tensor(starts)
    state.sector[0] = torch.tensor([0, 1])
    state.heard[:] = heard | torch.eye(2, dtype=torch.bool)
    state.beliefs.fill_(1e-4 if patches else 0.5)
    for x, probability in patches:
        state.beliefs[..., *in_view(env, x, 2, 0)] = probability
    settings = SearchConfig(presumed_share=share)
    planner = SearchPlanner("search", view, BeliefMap(view), BeamSearch(view), settings)
    actions = planner.act(state, env.generator).actions
    return env.lattice.offsets[actions][0, :, 0].tolist()


def test_uavs_part_by_radio_or_by_sectors() -> None:
    good_and_poor = [(3, 0.5), (9, 0.3)]
    starts = [[5, 2, 0], [6, 2, 0]]
    assert pair_steps(starts, good_and_poor, heard=False, share=0.0) == [-1, -1]
    assert pair_steps(starts, good_and_poor, heard=True, share=0.0) == [-1, 1]
    swapped = [[6, 2, 0], [5, 3, 0]]  # each in the other's sector, over ground alike everywhere
    assert pair_steps(swapped, [], heard=False, share=1.0) == [-1, 1]
    assert pair_steps(swapped, [], heard=False, share=0.0) != [-1, 1]


class Halving:
    """Finds a plan that leaves half of everything; keeps what it was to search on."""

    elements = 1

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def search(self, problem: Problem) -> Plan:
        self.seen.append(problem.entropy.clone())
        return Plan(problem.mask.int().argmax(1), problem.entropy / 2)


@pytest.mark.parametrize(
    ("memory", "share", "beside"),
    [(0.0, 0.0, 0.0), (0.75, 0.0, 0.0), (0.75, 0.4, 0.0), (1.0, 0.9, 0.0), (0.75, 0.9, 0.4)],
)
def test_plans_count_as_long_as_they_are_remembered(
    memory: float, share: float, beside: float
) -> None:
    """Against a dictionary of who knows whose plan, while UAVs hear each other now and then."""
    env = environment(missions=2, agents=3, budget=6)
    view, search = LatticeView(env.config, env.lattice), Halving()
    settings = SearchConfig(plan_memory=memory, presumed_share=share, presumed_beside_plan=beside)
    planner = SearchPlanner("search", view, BeliefMap(view), search, settings)
    generator = torch.Generator().manual_seed(5)
    sizes = torch.tensor([3, 2])
    sectors = Sectors(3, (7, 7), "cpu")
    nothing = torch.ones(7, 7)
    for _ in range(2):  # a new mission knows nothing of the one before
        state = flown(env, 0)
        state.team_size = sizes
        state.sector = sectors.deal(state.positions, sizes)
        maps = sectors.maps(state.sector, sizes)
        presumed = {
            (e, i, j): 1 - share * maps[e, j] if i != j else nothing
            for e, i, j in product(range(2), range(3), range(3))
        }
        known = dict(presumed)
        for move in range(5):
            state.t[:] = move
            state.heard = torch.rand(2, 3, 3, generator=generator) < 0.4
            if move:
                known = {k: memory * p + (1 - memory) * presumed[k] for k, p in known.items()}
            search.seen.clear()
            planner.act(state, env.generator)
            expected = BeliefMap(view).left(state)
            for i, e in product(range(3), range(2)):
                for j in range(3):
                    expected[e, i] *= known[e, i, j]
                    if j != i and state.heard[e, j, i]:
                        known[e, j, i] = 0.5 * (1 - beside * share * maps[e, i])
            torch.testing.assert_close(torch.stack(search.seen, 1), expected)


def test_it_is_made_from_settings(tmp_path: Path) -> None:
    env = searching(tmp_path, beams=4)
    state = flown(env)
    expected = planner_of(env).act(state, env.generator).actions
    assert torch.equal(make_planner("search", env).act(state, env.generator).actions, expected)
    make_planner("search", environment())  # with the predictor of the library


def test_it_scores_all_allowed_actions_when_asked(tmp_path: Path) -> None:
    env = searching(tmp_path, beams=4, rate_actions=True)
    state = flown(env)
    decision = make_planner("search", env).act(state, env.generator)
    assert decision.scores is not None
    assert torch.equal(decision.scores.argmax(-1), decision.actions)
    assert torch.equal(decision.scores > 0, decision.masks)
    assert planner_of(env).act(state, env.generator).scores is None


def test_a_file_that_is_no_predictor_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "team.pt"
    save_checkpoint(file, {"actor": {}})
    with pytest.raises(ConfigError, match=r"search\.predictor"):
        make_planner("search", searching(tmp_path, predictor=str(file)))


# The oracle ----------------------------------------------------------------------------------


def test_planners_are_better_the_more_they_know() -> None:
    env = MissionEnvironment(small_config(dims=(50.0, 50.0), agents=4, budget=14), 20, "cpu")
    names = ("oracle", "information_gain", "coverage", "random")
    flown = [evaluate(env, make_planner(name, env), 20, 10001).metrics for name in names]
    left = [metrics["roi_entropy"][:, -1].mean().item() for metrics in flown]
    assert left == sorted(left)
    assert left[1] - left[0] > 0.05
    f1 = [metrics["f1"][:, -1].mean() for metrics in flown]
    assert f1[0] == max(f1)


@pytest.mark.parametrize(
    ("dims", "starts", "patches", "ends"),
    [
        # Straight to what only the truth shows.
        ((50.0, 50.0), [(0, 0)], [(6, 6, 0)], [[6, 6, 0]]),
        # Two patches, as far from both UAVs: only the first UAV takes the larger one.
        ((50.0, 10.0), [(5, 0), (5, 2)], [(2, 1, 0), (8, 1, 2)], [[2, 1, 0], [8, 1, 0]]),
    ],
)
def test_the_oracle_flies_to_patches_and_shares_them(
    dims: tuple[float, float],
    starts: list[tuple[int, int]],
    patches: list[tuple[int, int, int]],
    ends: list[list[int]],
) -> None:
    budget = 11 if len(starts) == 1 else 3
    low = {"max_altitude": 5.0, "actions": 4}
    env = environment(missions=1, agents=len(starts), budget=budget, dims=dims, **low)
    state = flown(env, 0)
    state.positions[0, :, :2] = torch.tensor(starts)
    state.global_belief.fill_(0.5)
    state.truth.fill_(False)
    for x, y, missing in patches:
        rows, cols = in_view(env, x, y, 0)
        state.truth[:, rows.start : rows.stop - missing, cols] = True
    planner = make_planner("oracle", env)
    for _ in range(env.episode_length):
        env.step(state, planner.act(state, env.generator).actions)
    assert state.positions[0].tolist() == ends
