"""Planning on what each UAV expects of the map."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.mission import SearchConfig
from marl_framework.mission.belief import entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.kernels import make_builder
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.predictor import predictor_state
from marl_framework.planners.registry import make_planner
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.models import PredictedMap
from marl_framework.planners.search.planner import SearchPlanner, make_search
from marl_framework.planners.search.protocol import Plan, Problem
from marl_framework.runs.checkpoint import save_checkpoint
from tests.small import random_actions, small_config


def flown(env: MissionEnvironment, moves: int = 3) -> MissionState:
    """Missions on their way, by random moves."""
    state = env.reset(env.draw_reset())
    for _ in range(moves):
        env.step(state, random_actions(env, state, env.generator), env.draw_step())
    return state


def environment(missions: int = 3, **settings: Any) -> MissionEnvironment:
    return MissionEnvironment(small_config(**settings), missions, "cpu", "test")


def test_sums_and_parts_are_those_of_a_loop_over_cells() -> None:
    env = environment(pixels=(11, 13), dims=(30.0, 20.0))
    view = LatticeView(env.config, env.lattice, PARTS)
    rows, cols = env.config.geometry.map_shape
    maps = torch.rand(rows, cols)
    x, y, _ = env.lattice.shape
    sums, parts = torch.zeros(x, y), [[[] for _ in range(PARTS * y)] for _ in range(PARTS * x)]
    apart = [5.0 / size for size in env.config.geometry.cell_size]
    ends = (rows, cols)

    def place(cell: int, axis: int, number: int) -> tuple[int, int]:
        """The position nearest to a cell, and the part of its stretch that the cell lies in."""
        middle = cell + 0.5
        nearest = min(range(number), key=lambda k: abs(k * apart[axis] - middle))
        low = 0.0 if nearest == 0 else (nearest - 0.5) * apart[axis]
        high = ends[axis] if nearest == number - 1 else (nearest + 0.5) * apart[axis]
        part = int((middle - low) / ((min(high, ends[axis]) - low) / PARTS))
        return nearest, PARTS * nearest + part

    for row, col in product(range(rows), range(cols)):
        (i, fine_i), (j, fine_j) = place(row, 0, x), place(col, 1, y)
        sums[i, j] += maps[row, col]
        parts[fine_i][fine_j].append(maps[row, col].item())
    means = torch.tensor([[sum(p) / max(len(p), 1) for p in line] for line in parts])
    torch.testing.assert_close(view.sums(maps), sums * (x * y / (rows * cols)))
    torch.testing.assert_close(view.fine(maps), means)


@pytest.mark.parametrize("number", [0, 9])
def test_a_wide_beam_finds_the_best_path(number: int) -> None:
    limits = {"obstacles": {"number": number}}
    env = environment(missions=2, agents=1, budget=2, max_altitude=10.0, constraints=limits)
    view = LatticeView(env.config, env.lattice)
    state = env.reset(env.draw_reset())
    left = torch.rand(2, *env.lattice.shape[:2], generator=torch.Generator().manual_seed(5))
    position = state.positions[:, 0]
    mask = env.lattice.allowed(position, state.moves)
    moves = view.moves - state.t
    action, after, _ = BeamSearch(view, 200).search(
        Problem(position, mask, state.moves, left, moves, view.moves)
    )
    for e in range(2):
        found = {}
        for path in product(range(env.lattice.num_actions), repeat=view.moves):
            gain = walk(view, state.moves[e], position[e], left[e], path)
            if gain is not None:
                found[path] = gain
        best = max(found.values())
        assert (left[e] - after[e]).sum().item() == pytest.approx(best, abs=1e-4)
        assert max(g for path, g in found.items() if path[0] == action[e]) == pytest.approx(best)


def walk(
    view: LatticeView, ways: Tensor, position: Tensor, left: Tensor, path: tuple[int, ...]
) -> float | None:
    """Return what the readings along a path remove; None where it leaves its ways."""
    total = 0.0
    for action in path:
        if not ways[(*position.tolist(), action)]:
            return None
        position = view.destinations(position.view(1, 1, 3))[0, 0, action]
        rows, cols = view.removed(position)
        seen = left * rows.unsqueeze(1) * cols
        total, left = total + seen.sum().item(), left - seen
    return total


def untrained() -> MapPredictor:
    torch.manual_seed(1)
    return MapPredictor(8)


METHODS: dict[str, dict[str, Any]] = {
    "beam": {"beams": 4},
    "tree": {"method": "tree", "simulations": 12, "depth": 3, "leaves": 4},
}
of_each_method = pytest.mark.parametrize("method", METHODS)


def planner_of(env: MissionEnvironment, method: str) -> SearchPlanner:
    view = LatticeView(env.config, env.lattice, PARTS)
    model = PredictedMap(view, untrained(), "float32")
    search = make_search(view, SearchConfig(**METHODS[method]))
    return SearchPlanner("search", view, model, search, presumed_share=0.7)


@of_each_method
def test_it_never_reads_the_truth(method: str) -> None:
    env = environment()
    state = flown(env)
    actions = planner_of(env, method).act(state, env.generator).actions
    state.truth.logical_not_()
    state.global_belief.fill_(0.5)
    assert torch.equal(planner_of(env, method).act(state, env.generator).actions, actions)


@of_each_method
def test_missions_at_once_fly_as_each_alone(method: str) -> None:
    env = environment(missions=4)
    state = flown(env)
    together = planner_of(env, method).act(state, env.generator)
    for e in range(4):
        alone = planner_of(env, method).act(state[e : e + 1], env.generator)
        assert torch.equal(alone.actions[0], together.actions[e])
        assert torch.equal(alone.masks[0], together.masks[e])


def test_the_prediction_is_a_share_of_the_open_entropy_on_any_lattice() -> None:
    for dims in ((30.0, 30.0), (20.0, 45.0)):
        env = environment(dims=dims)
        view = LatticeView(env.config, env.lattice, PARTS)
        state = flown(env)
        left = PredictedMap(view, untrained(), "float32").left(state)
        assert left.shape == (3, 3, *env.lattice.shape[:2])
        assert (left >= 0).all()
        assert (left <= view.sums(entropy(state.beliefs)) + 1e-6).all()


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_entropy_expected_outside_counts_by_its_weight(weight: float) -> None:
    env = environment()
    state = flown(env)
    view = LatticeView(env.config, env.lattice, PARTS)
    inside = PredictedMap(view, untrained(), "float32").left(state)
    left = PredictedMap(view, untrained(), "float32", weight).left(state)
    everything = view.sums(entropy(state.beliefs))
    torch.testing.assert_close(left, inside + weight * (everything - inside))


class BeliefMap:
    """Takes each UAV's own belief for what there is: p·H(p) of every cell."""

    knows_all_plans = False

    def __init__(self, view: LatticeView) -> None:
        self._view = view

    def left(self, state: MissionState) -> Tensor:
        return self._view.sums(state.beliefs * entropy(state.beliefs))


def test_only_uavs_in_radio_range_leave_each_others_ground_alone() -> None:
    """Two UAVs, a good patch and a poor one: the second flies to the good one too if it is deaf."""
    env = environment(missions=1, agents=2, budget=3, dims=(50.0, 20.0), max_altitude=5.0)
    view = LatticeView(env.config, env.lattice)
    planner = SearchPlanner("search", view, BeliefMap(view), BeamSearch(view))
    state = env.reset(env.draw_reset())
    state.positions[0] = torch.tensor([[5, 2, 0], [6, 2, 0]])
    state.beliefs.fill_(1e-4)  # nothing is expected, …
    for x, probability in ((3, 0.5), (9, 0.3)):  # … but for a good patch and a poor one
        row0, row1, col0, col1, *_ = (
            f.item() for f in env.camera.footprint(torch.tensor([x, 2, 0]))
        )
        state.beliefs[..., row0:row1, col0:col1] = probability
    steps = {}
    for hears in (True, False):
        state.heard[:] = hears
        actions = planner.act(state, env.generator).actions
        steps[hears] = env.lattice.offsets[actions][0, :, 0].tolist()
    assert steps[False] == [-1, -1]
    assert steps[True] == [-1, 1]


class Halving:
    """Finds a plan that leaves half of everything; keeps what it was to search on."""

    numbers = 1

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
    view = LatticeView(env.config, env.lattice)
    search = Halving()
    planner = SearchPlanner("search", view, BeliefMap(view), search, memory, share, beside)
    generator = torch.Generator().manual_seed(5)
    sizes = torch.tensor([3, 2])
    sectors = Sectors(3, (7, 7), "cpu")
    for _ in range(2):  # a new mission knows nothing of the one before
        state = env.reset(env.draw_reset())
        state.team_size = sizes
        state.sector = sectors.deal(state.positions, sizes)
        maps = sectors.maps(state.sector, sizes)
        presumed = {
            (mission, i, j): 1 - share * maps[mission, j]
            for mission, i, j in product(range(2), range(3), range(3))
            if i != j
        }
        known: dict[tuple[int, int, int], Tensor] = dict(presumed)
        for move in range(5):
            state.t[:] = move
            state.heard = torch.rand(2, 3, 3, generator=generator) < 0.4
            for pair, plan in known.items():
                alone = presumed.get(pair, torch.ones(7, 7))
                known[pair] = memory * plan + (1 - memory) * alone if move else plan
            search.seen.clear()
            planner.act(state, env.generator)
            expected = BeliefMap(view).left(state)
            for i, mission in product(range(3), range(2)):
                for j in range(3):
                    expected[mission, i] *= known.get((mission, i, j), torch.ones(7, 7))
                for k in range(3):
                    if k != i and state.heard[mission, k, i]:
                        known[mission, k, i] = 0.5 * (1 - beside * share * maps[mission, i])
            torch.testing.assert_close(torch.stack(search.seen, 1), expected)


def test_without_radio_uavs_part_company() -> None:
    """Two UAVs, each in the other's sector of ground that promises the same everywhere."""
    env = environment(missions=1, agents=2, budget=3, dims=(50.0, 20.0), max_altitude=5.0)
    view = LatticeView(env.config, env.lattice)
    state = env.reset(env.draw_reset())
    state.positions[0] = torch.tensor([[6, 2, 0], [5, 3, 0]])
    state.sector[0] = torch.tensor([0, 1])
    state.beliefs.fill_(0.5)
    state.heard[:] = torch.eye(2, dtype=torch.bool)
    moves = {}
    for share in (0.0, 1.0):
        search = BeamSearch(view)
        planner = SearchPlanner("search", view, BeliefMap(view), search, presumed_share=share)
        actions = planner.act(state, env.generator).actions
        moves[share] = env.lattice.offsets[actions][0, :, 0].tolist()
    assert moves[1.0] == [-1, 1]
    assert moves[0.0] != [-1, 1]


@of_each_method
def test_the_planner_is_made_from_a_checkpoint(tmp_path: Path, method: str) -> None:
    env = environment()
    file = tmp_path / "best.pt"
    save_checkpoint(file, predictor_state(untrained(), 8))
    settings = {"baselines": {"search": {"predictor": str(file), **METHODS[method]}}}
    config = small_config(experiment=settings | env.config.model_dump()["experiment"] | settings)
    made = make_planner("search", MissionEnvironment(config, 3, "cpu", "test"))
    state = flown(env)
    expected = planner_of(env, method).act(state, env.generator).actions
    assert torch.equal(made.act(state, env.generator).actions, expected)


def test_without_settings_it_flies_with_the_predictor_of_the_library() -> None:
    assert make_planner("search", environment()).name == "search"


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "team.pt"
    save_checkpoint(other, {"actor": {}})
    settings = {"baselines": {"search": {"predictor": str(other)}}}
    config = small_config(experiment=settings)
    with pytest.raises(ConfigError, match="no checkpoint of a predictor"):
        make_planner("search", MissionEnvironment(config, 3, "cpu", "test"))


def searching(tmp_path: Path, **search: Any) -> MissionEnvironment:
    """Return missions of `search` with an untrained predictor and other settings."""
    file = tmp_path / "predictor.pt"
    save_checkpoint(file, predictor_state(untrained(), 8))
    experiment = small_config().model_dump()["experiment"]
    experiment["baselines"]["search"] |= {"predictor": str(file), **search}
    return MissionEnvironment(small_config(experiment=experiment), 3, "cpu", "test")


def test_a_trained_team_is_the_prior_of_a_tree(tmp_path: Path) -> None:
    file = tmp_path / "team.pt"
    config = small_config()
    team = COMAWrapper(config, config.network_sizes, "cpu")
    save_checkpoint(file, {**team.state_dict(), "config": config_to_dict(config)})
    env = searching(tmp_path, prior=str(file), **METHODS["tree"])
    planner = make_planner("search", env)
    assert isinstance(planner, SearchPlanner)
    state = flown(env)
    planner.act(state, env.generator)
    assert planner._prior is not None
    torch.testing.assert_close(planner._prior(state), team.act(make_builder(env).actor(state)))


def test_a_prior_that_no_search_can_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"search\.prior: .*set method to tree"):
        make_planner("search", searching(tmp_path, prior="somewhere"))
    with pytest.raises(ConfigError, match="nowhere"):
        make_planner("search", searching(tmp_path, prior="nowhere", method="tree"))
