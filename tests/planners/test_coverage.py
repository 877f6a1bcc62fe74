"""Coverage sees everything that its altitude can see, and wastes few moves on it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import shapely
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.model import coverage_level
from marl_framework.evaluation.flight import evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import CoveragePlanner
from marl_framework.planners.coverage import _boustrophedon, _cut, _lanes, _Plan, _Team
from marl_framework.planners.paths import path_lengths
from tests.mission.zones import feature, write_zones, zone_config
from tests.small import small_config


def fly(missions: int = 5, **changes: object) -> tuple[CoveragePlanner, torch.Tensor, torch.Tensor]:
    """Return the planner, the shares of the map seen and the altitude shares."""
    config = small_config(**changes)  # type: ignore[arg-type]
    env = MissionEnvironment(config, missions, "cpu", "test")
    planner = CoveragePlanner(config, env.lattice)
    record = evaluate(env, planner, missions, 3)
    return planner, record.metrics["coverage"][:, -1], record.altitude_shares


@pytest.mark.parametrize("altitude", [5.0, 10.0, 15.0])
@pytest.mark.parametrize("agents", [1, 2, 5, 8])
def test_all_is_seen_when_the_budget_allows(altitude: float, agents: int) -> None:
    lanes = {"baselines": {"coverage": {"altitude": altitude}}}
    config = small_config(agents=agents, dims=(33.0, 26.0), budget=120)
    experiment = {**config.experiment.model_dump(), **lanes}
    _, covered, shares = fly(agents=agents, dims=(33.0, 26.0), experiment=experiment)
    assert torch.equal(covered, torch.ones(5))
    if agents == 1:
        assert shares[0, int(altitude / 5) - 1] > 0.9


@pytest.mark.parametrize("actions", [4, 6, 9, 27])
def test_every_action_set_covers_the_map(actions: int) -> None:
    _, covered, shares = fly(actions=actions, agents=3, budget=60, dims=(30.0, 20.0))
    assert torch.equal(covered, torch.ones(5))
    low = 0 if actions in (6, 27) else 2  # without up and down it stays where it started
    assert (shares[:, low] > 0.9).all()


def test_more_uavs_than_points_still_fly() -> None:
    _, covered, _ = fly(agents=4, dims=(5.0, 5.0), budget=20)
    assert torch.equal(covered, torch.ones(5))


def test_a_new_mission_gets_a_new_plan() -> None:
    config = small_config(budget=40)
    env = MissionEnvironment(config, 3, "cpu", "test")
    planner = CoveragePlanner(config, env.lattice)
    first = evaluate(env, planner, 3, 5)
    evaluate(env, planner, 3, 6)
    again = evaluate(env, planner, 3, 5)
    assert torch.equal(first.positions, again.positions)


def test_only_missions_at_their_start_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MissionEnvironment(small_config(agents=2), 3, "cpu", "test")
    planner = CoveragePlanner(env.config, env.lattice)
    planned = []
    team = planner._teams[2]
    plan = team._new_plan

    def noted(positions: torch.Tensor, moves: torch.Tensor) -> _Plan:
        planned.append(len(positions))
        return plan(positions, moves)

    monkeypatch.setattr(team, "_new_plan", noted)
    state = env.reset(env.draw_reset())
    for move in range(4):
        if move == 3:  # one mission begins anew
            state = env.reset(env.draw_reset(), state, torch.tensor([False, True, False]))
            before = {name: values.clone() for name, values in vars(team._plan).items()}
        actions, *_ = planner.act(state, env.generator)
        if move < 3:
            env.step(state, actions, env.draw_step())
    assert planned == [3, 1]
    fresh = plan(state.positions, planner._moves_left(state))
    assert torch.equal(team._plan.piece[1], fresh.piece[1])
    assert torch.equal(team._plan.entry[1], fresh.entry[1])
    assert torch.equal(team._plan.piece[[0, 2]], before["piece"][[0, 2]])
    assert (team._plan.progress[1] <= 1).all()


def order_flown(planner: _Team, piece: int, entry: int, way: int) -> list[list[int]]:
    """Targets of a UAV that begins at a point of a piece, until all points were reached."""
    length = int(planner._lanes.length[piece])
    of = [torch.full((1, 1), value) for value in (piece, entry, way)]
    plans = [_Plan(*of, torch.full((1, 1), step)) for step in range(length)]
    return [planner._target(plan)[0, 0, :2].tolist() for plan in plans]


@pytest.mark.parametrize("way", [1, -1])
def test_what_lies_behind_the_entry_is_flown_last(way: int) -> None:
    config = small_config(agents=2)
    env = MissionEnvironment(config, 1, "cpu", "test")
    planner = _Team(config, env.lattice, 2)
    for piece in range(2):
        length = int(planner._lanes.length[piece])
        points = planner._lanes.points[piece, :length].tolist()
        for entry in range(length):
            ahead, behind = points[entry:], points[:entry][::-1]
            if way < 0:
                ahead, behind = points[: entry + 1][::-1], points[entry + 1 :]
            assert order_flown(planner, piece, entry, way) == ahead + behind


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("left", [-1, 0, 3, 11, 20, 40, 90])
def test_what_an_entry_promises_is_what_is_flown(way: int, left: int) -> None:
    config = small_config(agents=2)
    env = MissionEnvironment(config, 1, "cpu", "test")
    planner = _Team(config, env.lattice, 2)
    lanes = planner._lanes
    points = torch.cat((lanes.points, torch.zeros_like(lanes.points[..., :1])), dim=-1)
    promised = planner._cells_in_view(points, torch.full((1, 1, *points.shape[:2]), left), way)[
        0, 0
    ]
    for piece in range(2):
        for entry in range(int(lanes.length[piece])):
            moves, seen, at = left, 0, None
            for target in order_flown(planner, piece, entry, way):
                if at is not None:
                    moves -= abs(at[0] - target[0]) + abs(at[1] - target[1])
                if moves < 0:
                    break
                at = target
                row0, row1, col0, col1, *_ = env.camera.footprint(torch.tensor([*target, 0]))
                seen += (row1 - row0).item() * (col1 - col0).item()
            assert promised[piece, entry].item() == seen


def test_an_altitude_off_the_lattice_is_refused() -> None:
    config = small_config(experiment={"baselines": {"coverage": {"altitude": 7.0}}})
    env = MissionEnvironment(config, 1, "cpu", "test")
    with pytest.raises(ConfigError, match=r"^experiment\.baselines\.coverage\.altitude 7 m"):
        CoveragePlanner(config, env.lattice)


@settings(max_examples=100)
@given(
    starts=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    width=st.integers(1, 12),
    cells=st.integers(1, 60),
)
def test_lanes_leave_no_gap_and_none_can_go(starts: list[int], width: int, cells: int) -> None:
    low = [min(cells, sum(starts[: k + 1])) for k in range(len(starts))]
    high = [min(cells, a + width) for a in low]
    lanes = _lanes(low, high)
    assert lanes == sorted(set(lanes))

    def seen(chosen: list[int]) -> set[int]:
        return {c for k in chosen for c in range(low[k], high[k])}

    assert seen(lanes) == seen(list(range(len(low))))
    if all(b - a < width for a, b in pairwise(low)):
        # No two lanes do what one between them could: greedy choice of intervals is optimal.
        for k in range(1, len(lanes) - 1):
            assert high[lanes[k - 1]] < low[lanes[k + 1]] or low[lanes[k + 1]] <= high[lanes[k]]


@settings(max_examples=50)
@given(
    rows=st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True),
    cols=st.tuples(st.integers(0, 6), st.integers(6, 9)),
    pieces=st.integers(1, 16),
)
def test_the_path_is_one_move_at_a_time_and_cut_evenly(
    rows: list[int], cols: tuple[int, int], pieces: int
) -> None:
    path = _boustrophedon(sorted(rows), list(cols))
    assert len(set(path)) == len(path)
    for (x, y), (next_x, next_y) in pairwise(path):
        assert abs(x - next_x) + abs(y - next_y) == 1
    assert {(x, y) for x in rows for y in range(cols[0], cols[1] + 1)} <= set(path)
    lanes = _cut(path, [[2] * 13, [3] * 10], pieces, torch.device("cpu"))
    lengths = lanes.length.tolist()
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1
    flown = [
        tuple(point)
        for g, length in enumerate(lengths)
        for point in lanes.points[g, :length].tolist()
    ]
    assert set(flown) == set(path)
    assert lanes.area[:, -1].tolist() == [6.0 * lanes.points.shape[1]] * pieces


def test_it_flies_around_a_wall_and_skips_what_lies_in_it(tmp_path: Path) -> None:
    """A wall with a gap at the far end: everything beside it is seen all the same."""
    wall = shapely.box(12, -1, 18, 21)
    path = write_zones(tmp_path / "z.json", feature(wall))
    config = zone_config(path, agents=1, budget=90)
    env = MissionEnvironment(config, 5, "cpu", "test")
    record = evaluate(env, CoveragePlanner(config, env.lattice), 5, 3)
    assert (record.metrics["coverage"][:, -1] > 0.88).all()  # 0.897 without the wall itself
    planar = record.positions[:, :, 0, :2]
    assert not ((planar[..., 0] == 3) & (planar[..., 1] <= 4)).any()
    assert ((planar[..., 0] < 3).any(1) & (planar[..., 0] > 3).any(1)).all()  # both sides


def test_it_goes_on_where_a_zone_hides_part_of_the_area(tmp_path: Path) -> None:
    """A closed ring that nobody can enter: the rest is seen, and no UAV waits at its border."""
    ring = shapely.box(9, 9, 21, 21).difference(shapely.box(14, 14, 16, 16))
    path = write_zones(tmp_path / "z.json", feature(ring))
    config = zone_config(path, agents=2, budget=60)
    env = MissionEnvironment(config, 5, "cpu", "test")
    record = evaluate(env, CoveragePlanner(config, env.lattice), 5, 3)
    seen = [len({tuple(at) for at in flight.tolist()}) for flight in record.positions.flatten(1, 2)]
    assert min(seen) > 30  # of 40 places outside at 5 m
    assert (record.metrics["coverage"][:, -1] > 0.77).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), actions=st.sampled_from([4, 6, 9, 27]))
def test_path_lengths_are_those_of_a_plain_search(seed: int, actions: int) -> None:
    config = zone_config(None, 5, actions=actions, agents=2, seed=seed, dims=(25.0, 20.0))
    env = MissionEnvironment(config, 2, "cpu")
    state = env.reset(env.draw_reset())
    found = path_lengths(env.lattice, state.moves, state.positions, 6)
    steps = env.lattice.offsets.tolist()
    for e in range(2):
        moves = state.moves[e]
        for n in range(2):
            start = tuple(state.positions[e, n].tolist())
            lengths, front = {start: 0}, [start]
            for length in range(1, 7):
                front = list(
                    {
                        goal
                        for at in front
                        for a, step in enumerate(steps)
                        if moves[(*at, a)]
                        and (goal := tuple(p + s for p, s in zip(at, step, strict=True)))
                        not in lengths
                    }
                )
                lengths |= dict.fromkeys(front, length)
            expected = torch.full(env.lattice.shape, 7)
            for at, length in lengths.items():
                expected[at] = length
            assert found[e, n].equal(expected)


@pytest.mark.parametrize(("actions", "level"), [(6, 1), (27, 1), (4, 2), (9, 2)])
def test_its_altitude_counts_where_uavs_can_climb(actions: int, level: int) -> None:
    lanes = "experiment.baselines.coverage.altitude=10"
    options = [f"experiment.constraints.num_actions={actions}", "experiment.policy=coverage"]
    assert coverage_level(load_config("params.yaml", [*options, lanes])) == level
    if actions in (4, 9):
        assert coverage_level(load_config("params.yaml", [*options, f"{lanes}.5"])) == level
