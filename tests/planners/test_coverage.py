"""Coverage sees everything that its altitude can see, and wastes few moves on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config, coverage_level
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import CoveragePlanner, coverage
from tests.mission.zones import feature, write_zones, zone_config
from tests.planners.missions import in_view
from tests.small import small_config


def fly(config: Config) -> tuple[FlightRecord, torch.Tensor]:
    env = MissionEnvironment(config, 5, "cpu", "test")
    record = evaluate(env, CoveragePlanner(config, env.lattice), 5, 3)
    return record, record.metrics["coverage"][:, -1]


def at_altitude(altitude: float, **options: Any) -> Config:
    config = small_config(**options)
    lanes = {"baselines": {"coverage": {"altitude": altitude}}}
    return small_config(**options, experiment={**config.experiment.model_dump(), **lanes})


# Readings of each UAV until all is seen, in the slowest of five missions, for 1, 2, 5 and 8 UAVs.
READINGS = {5.0: (51, 32, 19, 17), 10.0: (30, 20, 17, 11), 15.0: (20, 14, 10, 10)}


@pytest.mark.parametrize(
    ("altitude", "options", "readings"),
    [
        *(
            (altitude, {"agents": agents, "dims": (33.0, 26.0), "budget": 120}, number)
            for altitude, numbers in READINGS.items()
            for agents, number in zip((1, 2, 5, 8), numbers, strict=True)
        ),
        *(
            (5.0, {"actions": actions, "dims": (30.0, 20.0), "budget": 60}, number)
            for actions, number in ((4, 12), (9, 9), (27, 16))
        ),
        (5.0, {"agents": 4, "dims": (5.0, 5.0), "budget": 20}, 1),  # more UAVs than points
    ],
)
def test_all_is_seen_soon_when_the_budget_allows(
    altitude: float, options: dict[str, Any], readings: int
) -> None:
    record, covered = fly(at_altitude(altitude, **options))
    assert torch.equal(covered, torch.ones(5))
    assert (record.metrics["coverage"] < 1).sum(1).max() <= readings
    if options.get("agents") == 1 or "actions" in options:
        climbs = options.get("actions") not in (4, 9)
        level = int(altitude / 5) - 1 if climbs else 2  # without up and down it stays at the top
        assert (record.altitude_shares[:, level] > 0.9).all()


def test_a_mission_that_begins_gets_a_new_plan_and_the_others_keep_theirs() -> None:
    env = MissionEnvironment(small_config(agents=2, budget=40), 3, "cpu", "test")

    def act(planner: CoveragePlanner, missions: slice) -> torch.Tensor:
        return planner.act(state[missions], env.generator).actions

    planner, other = (CoveragePlanner(env.config, env.lattice) for _ in range(2))
    state = env.reset()
    for _ in range(15):
        actions = act(planner, slice(None))
        assert torch.equal(act(other, slice(2, 3)), actions[2:])
        env.step(state, actions)
    state = env.reset(state=state, mask=torch.tensor([False, True, False]))
    fresh = CoveragePlanner(env.config, env.lattice)
    for _ in range(15):
        actions = act(planner, slice(None))
        assert torch.equal(act(other, slice(2, 3)), actions[2:])
        assert torch.equal(act(fresh, slice(1, 2)), actions[1:2])
        env.step(state, actions)
    first, _, again = (evaluate(env, planner, 3, seed).positions for seed in (5, 6, 5))
    assert torch.equal(first, again)


def test_it_flies_around_a_wall_and_skips_what_lies_in_it(tmp_path: Path) -> None:
    """A wall with a gap at the far end: everything beside it is seen all the same."""
    path = write_zones(tmp_path / "z.json", feature(shapely.box(12, -1, 18, 21)))
    record, covered = fly(zone_config(path, agents=1, budget=90))
    assert (covered > 0.88).all()  # 0.897 without the wall itself
    x, y = record.positions[:, :, 0, :2].unbind(-1)
    assert not ((x == 3) & (y <= 4)).any()
    assert ((x < 3).any(1) & (x > 3).any(1)).all()  # both sides


def test_it_goes_on_where_a_zone_hides_part_of_the_area(tmp_path: Path) -> None:
    """A closed ring that nobody can enter: the rest is seen, and no UAV waits at its border."""
    ring = shapely.box(9, 9, 21, 21).difference(shapely.box(14, 14, 16, 16))
    path = write_zones(tmp_path / "z.json", feature(ring))
    record, covered = fly(zone_config(path, agents=2, budget=60))
    seen = [len({tuple(at) for at in flight.tolist()}) for flight in record.positions.flatten(1, 2)]
    assert min(seen) > 30  # of 40 places outside at 5 m
    assert (covered > 0.77).all()


def star(seed: int) -> Any:
    """A polygon with arms of random lengths."""
    rng = np.random.default_rng(seed)
    angles, radii = np.sort(rng.uniform(0, 2 * np.pi, 8)), rng.uniform(12, 50, 8)
    return shapely.Polygon(np.stack((radii * np.cos(angles), radii * np.sin(angles)), -1))


ARMS = {
    "L": shapely.union(shapely.box(0, 0, 60, 10), shapely.box(0, 0, 14, 40)),
    "T": shapely.union(shapely.box(26, 0, 31, 35), shapely.box(0, 35, 60, 60)),
    "comb": shapely.union_all([shapely.box(x, 0, x + 5, 50) for x in (5, 25, 45, 75)])
    | shapely.box(0, 0, 80, 12),
    "hole": shapely.box(0, 0, 52, 42) - shapely.box(11, 11, 23, 22),
    "star": star(4),
}


@pytest.mark.parametrize("shape", ARMS)
@pytest.mark.parametrize("altitude", [10.0, 15.0])
@pytest.mark.parametrize(("agents", "actions"), [(1, 6), (3, 27)])
def test_it_sees_all_of_a_field_that_can_be_seen(
    shape: str, altitude: float, agents: int, actions: int, tmp_path: Path
) -> None:
    """Parts of a field between two lanes, too."""
    path = write_zones(tmp_path / "f.geojson", feature(ARMS[shape]))
    options = {"agents": agents, "actions": actions, "budget": 240, "pixels": (20, 20)}
    config = at_altitude(altitude, environment={"field": str(path)}, **options)
    env = MissionEnvironment(config, 2, "cpu", "test")
    seen = torch.zeros(env.camera.shape, dtype=torch.bool)
    for x, y in env.reset().moves[0].any(-1).any(-1).nonzero().tolist():
        seen[in_view(env, x, y, coverage_level(config))] = True
    record = evaluate(env, CoveragePlanner(config, env.lattice), 2, 3, curves=False)
    covered = record.metrics["coverage"][:, -1]
    inside = env.reset().inside[0]
    assert (covered > (seen & inside).sum() / inside.sum() - 1e-6).all()


def test_it_needs_no_file_that_the_missions_have_read(tmp_path: Path) -> None:
    path = write_zones(tmp_path / "f.geojson", feature(ARMS["L"]))
    config = small_config(environment={"field": str(path)})
    env = MissionEnvironment(config, 2, "cpu", "test")
    path.unlink()
    evaluate(env, CoveragePlanner(config, env.lattice), 2, 3)


@pytest.mark.parametrize("altitude", [5.0, 10.0, 15.0])
def test_a_field_that_is_the_whole_area_changes_no_flight(altitude: float, tmp_path: Path) -> None:
    path = write_zones(tmp_path / "f.geojson", feature(shapely.box(0, 0, 30, 25)))
    options = {"budget": 80, "pixels": (20, 20)}
    in_field, _ = fly(at_altitude(altitude, environment={"field": str(path)}, **options))
    anywhere, _ = fly(at_altitude(altitude, dims=(30.0, 25.0), **options))
    # In a field, UAVs skip places that they cannot reach in the moves left.
    assert torch.equal(in_field.positions[:, :60], anywhere.positions[:, :60])


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    actions=st.sampled_from([4, 6, 9, 27]),
    version=st.sampled_from([Version.PLAIN, Version.LOOPS]),
)
def test_path_lengths_are_scipys(seed: int, actions: int, version: Version) -> None:
    config = zone_config(None, 5, actions=actions, agents=2, seed=seed, dims=(25.0, 20.0))
    env = MissionEnvironment(config, 2, "cpu")
    state = env.reset()
    found = coverage.path_lengths(env.lattice, state.moves, state.positions, 6, version)
    places, steps = env.lattice.places(state.positions), env.lattice.places(env.lattice.offsets)
    for e in range(2):
        at, action = state.moves[e].flatten(0, 2).nonzero().unbind(1)
        ends = at.numpy(), (at + steps[action]).numpy()
        ways = csr_array((np.ones(len(at)), ends), [found[e, 0].numel()] * 2)
        lengths = shortest_path(ways, unweighted=True, indices=places[e].numpy())
        assert found[e].flatten(1).equal(torch.from_numpy(lengths).clamp(max=7).long())


@pytest.mark.parametrize(("actions", "level"), [(6, 1), (27, 1), (4, 2), (9, 2)])
def test_its_altitude_counts_where_uavs_can_climb(actions: int, level: int) -> None:
    lanes = "experiment.baselines.coverage.altitude=10"
    options = [f"experiment.constraints.num_actions={actions}", "experiment.policy=coverage"]
    assert coverage_level(load_config("params.yaml", [*options, lanes])) == level
    if actions in (4, 9):
        assert coverage_level(load_config("params.yaml", [*options, f"{lanes}.5"])) == level
    else:
        config = at_altitude(7.0, actions=actions)
        with pytest.raises(ConfigError, match=r"coverage\.altitude 7 m"):
            CoveragePlanner(config, MissionEnvironment(config, 1, "cpu").lattice)
