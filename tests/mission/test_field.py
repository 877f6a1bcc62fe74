"""Fields: what counts, where UAVs fly, and what is wrong with a bad file."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import shapely
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.field import read_field
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.evaluation.flight import cells_in_view, evaluate
from marl_framework.evaluation.metrics import coverage, map_metrics
from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.evaluation.outlines import zone_outlines
from marl_framework.kernels.cells import entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.field import NUMBERS
from marl_framework.mission.files import files_read
from marl_framework.mission.sectors import Sectors
from marl_framework.mission.state import MissionState
from marl_framework.planners.registry import make_planner
from tests.mission.zones import feature, write_zones
from tests.small import meta_draws, random_actions, small_config

KEY = "environment.field"
HOLED = shapely.Polygon(
    [(0, 0), (52, 0), (52, 24), (28, 41.5), (0, 41.5)],
    [[(11, 11), (23, 11), (23, 22), (11, 22)]],
)
OUTLINES = [
    HOLED,
    shapely.Polygon([(0, 6), (21, 0), (39, 13), (33, 31), (6, 27)]),
    shapely.Polygon([(0, 0), (60, 0), (60, 10), (14, 10), (14, 40), (0, 40)]),
]


def field_config(field: str | Path, **options: Any) -> Config:
    return small_config(environment={"field": str(field), "num_envs": 3}, **options)


def write_field(folder: Path, *shapes: Any, metres: bool = True) -> Path:
    return write_zones(folder / "field.geojson", *map(feature, shapes), metres=metres)


def started(config: Config, missions: int = 3) -> tuple[MissionEnvironment, MissionState]:
    env = MissionEnvironment(config, missions, "cpu", seed=5)
    return env, env.reset()


def centres(config: Config) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    axes = zip(config.geometry.map_shape, config.geometry.cell_size, strict=True)
    x, y = np.meshgrid(*((np.arange(n) + 0.5) * size for n, size in axes), indexing="ij")
    return x, y


def even_odd(shape: Any, x: float, y: float) -> bool:
    """Whether a point lies in a polygon: the rings crossed to the right of it are odd in number."""
    crossed = 0
    for ring in (shape.exterior, *shape.interiors):
        points = list(ring.coords)
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            if (y0 > y) != (y1 > y):
                crossed += x < x0 + (y - y0) / (y1 - y0) * (x1 - x0)
    return crossed % 2 == 1


@pytest.mark.parametrize("shape", OUTLINES)
def test_cells_and_positions_are_those_that_a_loop_finds(shape: Any, tmp_path: Path) -> None:
    config = field_config(write_field(tmp_path, shape))
    left, bottom, right, top = shape.bounds
    assert (config.environment.x_dim, config.environment.y_dim) == (
        5 * math.ceil((right - left) / 5),
        5 * math.ceil((top - bottom) / 5),
    )
    env, state = started(config)
    for (r, c), x, y in zip(
        np.ndindex(*config.geometry.map_shape), *map(np.ravel, centres(config)), strict=True
    ):
        assert bool(state.inside[0, r, c]) == even_odd(shape, x + left, y + bottom)
    assert state.counted.tolist() == state.inside.sum((1, 2)).tolist()
    near = shapely.buffer(shape, 0.01)
    offsets = env.lattice.offsets.tolist()

    def stays(x: float, y: float, dx: int, dy: int) -> bool:
        return bool(near.covers(shapely.LineString([(x, y), (x + 5 * dx, y + 5 * dy)])))

    for x, y, z in np.ndindex(*env.lattice.shape):
        place = 5 * x + left, 5 * y + bottom
        alone = not any(stays(*place, dx, dy) for dx, dy, _ in offsets if dx or dy)
        for a, (dx, dy, dz) in enumerate(offsets):
            on_lattice = bool(env.lattice.table()[x, y, z, a])
            expected = on_lattice and stays(*place, dx, dy) and not (dz and alone)
            assert bool(state.moves[0, x, y, z, a]) == expected


@pytest.mark.parametrize("parts", [1, 2])
def test_a_geometry_alone_is_a_field(parts: int, tmp_path: Path) -> None:
    boxes = [shapely.box(11 + k * 1e-3, 48, 11.001 + k * 1e-3, 48.0006) for k in range(parts)]
    shape = boxes[0] if parts == 1 else shapely.MultiPolygon([boxes[0], boxes[1].buffer(-1e-5)])
    expected = read_field(str(write_field(tmp_path, shape, metres=False)))
    (path := tmp_path / "alone.geojson").write_text(shapely.to_geojson(shape))
    found = read_field(str(path))
    assert found.origin == expected.origin
    assert found.shape.equals(expected.shape)


def test_degrees_are_metres_around_their_lower_left_corner(tmp_path: Path) -> None:
    latitude, longitude = 48.1492, 11.5687
    near = pyproj.Proj(proj="tmerc", lat_0=latitude, lon_0=longitude, datum="WGS84")
    rings = [
        [near(x, y, inverse=True) for x, y in ring.coords]
        for ring in (HOLED.exterior, *HOLED.interiors)
    ]
    degrees = shapely.Polygon(rings[0], rings[1:])
    config = field_config(write_field(tmp_path, degrees, metres=False))
    assert config.deployment.origin == pytest.approx((latitude, longitude), abs=2e-8)
    assert (config.environment.x_dim, config.environment.y_dim) == (55, 45)
    _, state = started(config)
    in_metres = tmp_path / "metres"
    in_metres.mkdir()
    _, other = started(field_config(write_field(in_metres, HOLED)))
    assert torch.equal(state.moves, other.moves)
    assert (state.inside != other.inside).double().mean() < 1e-3  # rounded borders


def check_outside(state: MissionState) -> None:
    """What holds for cells outside, at any time."""
    outside = ~state.inside
    assert not (state.truth & outside).any()
    for beliefs in (state.global_belief.unsqueeze(1), state.beliefs):
        cells = beliefs.masked_select(outside.unsqueeze(1))
        assert (cells <= 1e-4).all()
        # Their entropy is that of certain cells, and never changes.
        assert torch.equal(entropy(cells), torch.full_like(cells, entropy(torch.zeros(())).item()))


def moved(env: MissionEnvironment, state: MissionState, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)

    def choose(_: int, mask: Tensor) -> Tensor:
        assert mask.any(-1).all()
        return (torch.rand(mask.shape, generator=generator) * mask).argmax(-1)

    actions, _ = env.lattice.choose_in_missions(state, choose)
    return actions


@pytest.mark.parametrize("source", ["file", "random"])
@pytest.mark.parametrize("kernels", ["plain", "loops"])
@pytest.mark.parametrize("actions", [4, 27])
def test_uavs_stay_inside_and_only_the_inside_counts(
    source: str, kernels: str, actions: int, tmp_path: Path
) -> None:
    field = str(write_field(tmp_path, HOLED)) if source == "file" else "random"
    config = field_config(
        field,
        actions=actions,
        budget=9,
        dims=(45.0, 35.0),
        compute={"precision": "float32", "compile": kernels == "loops"},
        observation={"uncertainty": True},
    )
    env, state = started(config)
    for move in range(9):
        check_outside(state)
        at = state.positions[..., :2].clone()
        mission = torch.arange(3).unsqueeze(1)
        assert state.moves[mission, at[..., 0], at[..., 1]].flatten(2).any(-1).all()
        before = {name: getattr(state, name).clone() for name in ("entropy", "weighted_entropy")}
        result = env.step(state, moved(env, state, move))
        inside_gain = before["entropy"] - state.entropy
        found = entropy(state.global_belief.double()).masked_fill(~state.inside, 0).sum((1, 2))
        torch.testing.assert_close(state.entropy, found, rtol=1e-6, atol=1e-3)
        assert result.absolute.isfinite().all()
        assert (inside_gain.abs() <= state.counted).all()
    kept = {
        name: getattr(state, name).clone()
        for name in (
            "pooled_beliefs",
            "pooled_global",
            "pooled_readings",
            "pooled_uncertainty",
            "entropy",
        )
    }
    env.refresh(state)
    for name, values in kept.items():
        torch.testing.assert_close(values, getattr(state, name), rtol=1e-6, atol=1e-3)


def test_a_step_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    """Readings, beliefs and gains of one mission, cell by cell in double precision."""
    config = field_config(write_field(tmp_path, HOLED), agents=3)
    env, state = started(config, 1)
    for move in range(3):
        before = state.global_belief[0].double().clone()
        draws = env.draw_step()
        result = env.step(state, moved(env, state, move), draws)
        expected, gain, available = before.clone(), 0.0, 0.0
        for uav in range(3):
            place = tuple(state.positions[0, uav].tolist())
            r0, r1, c0, c1, top, left, *_ = env.camera.box_table[place].tolist()
            miss, false_alarm = env.camera.model_rates[place[2]].double().tolist()
            for r in range(r0, r1):
                for c in range(c0, c1):
                    reading = int(state.readings[0, uav, r - top, c - left])
                    if not state.inside[0, r, c]:
                        assert reading == -1
                        continue
                    draw = int(draws.sensor[0, uav, r - top, c - left])
                    interest = bool(state.truth[0, r, c])
                    rate = miss if interest else false_alarm
                    flipped = draw < round(rate * 2**16) - 2**15
                    assert reading == (1 if interest != flipped else -1)
                    p = min(max(float(expected[r, c]), 1e-4), 1 - 1e-4)
                    yes, no = (1 - miss, false_alarm) if reading > 0 else (miss, 1 - false_alarm)
                    expected[r, c] = p * yes / (p * yes + (1 - p) * no)
        inside = state.inside[0].numpy()
        old, new = before.numpy()[inside], expected.numpy()[inside]
        weight = np.where(new > 0.501, 1.0, np.where(new < 0.499, 0.0, 0.5))

        def bits(p: Any) -> Any:
            p = np.clip(p, 1e-4, 1 - 1e-4)
            return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))

        gain, available = (weight * (bits(old) - bits(new))).sum(), (weight * bits(old)).sum()
        torch.testing.assert_close(
            state.global_belief[0].double()[state.inside[0]],
            expected[state.inside[0]],
            rtol=0,
            atol=1e-5,
        )
        assert float(result.absolute) == pytest.approx(gain / inside.sum(), abs=1e-5)
        assert float(result.relative) == pytest.approx(gain / available, abs=1e-5)


@given(
    numbers=st.lists(
        st.floats(0, 1, exclude_max=True, width=32), min_size=NUMBERS, max_size=NUMBERS
    ),
    x=st.integers(2, 14),
    y=st.integers(2, 14),
    extra=st.floats(0, 4.9),
)
def test_a_random_field_is_in_one_piece(numbers: list[float], x: int, y: int, extra: float) -> None:
    """Every position of a field is reached from every other, over lines within its cells."""
    config = small_config(
        agents=1, dims=(5.0 * (x - 1) + extra, 5.0 * (y - 1)), environment={"field": "random"}
    )
    env = MissionEnvironment(config, 1, "cpu")
    assert env.fields is not None
    assert env.fields.random is not None
    draws = torch.tensor([numbers])
    positions = env.fields.random.positions(draws)[0]
    moves = env.fields.random.moves(draws)[0]
    assert positions.any()
    assert torch.equal(moves.flatten(2).any(-1), positions)
    start = tuple(positions.nonzero()[0].tolist())
    reached, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        for a, (dx, dy, dz) in enumerate(env.lattice.offsets.tolist()):
            goal = (here[0] + dx, here[1] + dy)
            if dz == 0 and moves[here[0], here[1], 0, a] and goal not in reached:
                assert positions[goal]
                reached.add(goal)
                waiting.append(goal)
    assert len(reached) == int(positions.sum())


def test_what_a_real_camera_reads_outside_does_not_count(tmp_path: Path) -> None:
    env, state = started(field_config(write_field(tmp_path, HOLED)))
    footprint = env.camera.footprint(state.positions)
    index = env.camera.window_index(footprint).view_as(state.readings)
    taken = state.readings != 0
    state.readings.copy_(taken)
    assert env.fields is not None
    env.fields.clear(state, index.flatten(2))
    inside = state.inside.flatten(1).gather(1, index.flatten(1)).view_as(taken)
    assert torch.equal(state.readings, torch.where(inside, 1, -1) * taken)


def test_metrics_are_those_of_the_cells_inside(tmp_path: Path) -> None:
    env, _ = started(field_config(write_field(tmp_path, HOLED), budget=5))
    record = evaluate(env, make_planner("random", env, None), 3, 1, keep_maps=3)
    assert record.inside is not None
    for e in range(3):
        belief, truth = (
            maps[e][record.inside[e]].view(1, 1, -1) for maps in (record.belief, record.truth)
        )
        seen = cells_in_view(record.footprints[e].flatten(0, 1), record.inside[e].shape)
        seen = seen[record.inside[e]].view(1, 1, -1)
        expected = map_metrics(belief, truth, seen)
        assert float(record.metrics["coverage"][e, -1]) == pytest.approx(float(coverage(seen)))
        for name, value in expected.items():
            assert float(record.metrics[name][e, -1]) == pytest.approx(float(value), abs=2e-5)


def test_figures_and_pages_draw_the_ground_outside(tmp_path: Path) -> None:
    env, _ = started(field_config(write_field(tmp_path, HOLED), budget=3))
    record = evaluate(env, make_planner("random", env, None), 1, 1)
    (outline,) = zone_outlines(record.alone(0))
    outside = shapely.Polygon()
    for ring in outline.rings:
        outside = outside.symmetric_difference(shapely.Polygon(ring))
    rows, cols = env.camera.shape
    size = np.array(env.config.geometry.cell_size)
    whole = shapely.box(0, 0, *(size * (rows, cols)))
    assert outside.symmetric_difference(whole.difference(HOLED)).area < 0.02 * whole.area
    MissionPage({"random": record}).write(tmp_path / "page.html")
    assert outline.label in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_fields_differ_between_missions_and_are_the_same_for_a_seed() -> None:
    _, state = started(field_config("random", dims=(60.0, 45.0)))
    _, again = started(field_config("random", dims=(60.0, 45.0)))
    assert torch.equal(state.inside, again.inside)
    assert len({tuple(cells.flatten().tolist()) for cells in state.inside}) == 3
    assert (state.inside.double().mean((1, 2)) > 0.25).all()


@pytest.mark.parametrize("name", ["search", "coverage", "information_gain", "random", "oracle"])
@pytest.mark.parametrize("source", ["file", "random"])
def test_planners_fly_inside(name: str, source: str, tmp_path: Path) -> None:
    field = str(write_field(tmp_path, HOLED)) if source == "file" else "random"
    env, state = started(field_config(field, budget=6, dims=(45.0, 35.0)), 2)
    planner = make_planner(name, env, None)
    for _ in range(7):
        decision = planner.act(state, torch.Generator().manual_seed(3))
        allowed = env.lattice.options(state).gather(2, decision.actions.unsqueeze(2))
        assert allowed.all()
        env.step(state, decision.actions)


@given(team=st.integers(1, 16), seed=st.integers(0, 99))
def test_sectors_share_the_positions_of_a_field(team: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (int(torch.randint(4, 13, (), generator=generator)),) * 2
    field = torch.rand(shape, generator=generator) < 0.7
    sectors = Sectors(team, shape, "cpu", field)
    ids = torch.arange(team).unsqueeze(0)
    maps = sectors.maps(ids, torch.tensor([team]))[0]
    assert torch.equal(maps.sum(0), field.float())  # each position is in one sector


def test_sectors_of_a_field_are_even(tmp_path: Path) -> None:
    env, state = started(field_config(write_field(tmp_path, OUTLINES[2]), agents=3))
    sizes = env.lattice.sectors.maps(state.sector, state.team_size)[0].sum((1, 2))
    assert env.lattice.field is not None
    assert sizes.sum() == env.lattice.field.sum()
    assert sizes.max() < 2 * sizes.min()


def test_missions_with_fields_start_on_any_device() -> None:
    config = field_config("random")
    env = MissionEnvironment(config, 3, "meta")
    state = env.empty_state()
    assert env.fields is not None
    assert env.fields.random is not None
    draws = torch.empty(3, NUMBERS, device="meta")
    state.moves = env.fields.random.moves(draws)
    state.inside = env.fields.random.cells(draws)
    env.blank(state)
    env.step(state, torch.zeros(3, 3, dtype=torch.int64, device="meta"), meta_draws(env))


def bad(*shapes: Any, metres: bool = True, **fields: Any) -> str:
    unit = {"coordinates": "metres"} if metres else {}
    tree = {"type": "FeatureCollection", **unit, "features": list(map(feature, shapes)), **fields}
    return json.dumps(tree)


BOX = shapely.box(0, 0, 30, 30)
BAD = {
    "text": ("{", "GeoJSON"),
    "list": ("[]", "FeatureCollection"),
    "bow": (bad(shapely.Polygon([(0, 0), (30, 30), (30, 0), (0, 30)])), "Self-intersection"),
    "hole outside": (
        bad(shapely.Polygon(BOX.exterior.coords, [[(40, 40), (44, 40), (44, 44)]])),
        "Hole lies outside",
    ),
    "line": (bad(shapely.LineString([(0, 0), (9, 9)])), "feature 1: .*Polygon"),
    "no coordinates": (
        bad(features=[{"type": "Feature", "geometry": {"type": "Polygon"}}]),
        "feature 1: .* with coordinates",
    ),
    "small": (bad(shapely.Polygon([(0, 2), (2, 0), (30, 28), (28, 30)])), "too small.*5 m"),
    "two parts": (
        bad(shapely.box(0, 0, 12, 30), shapely.box(18, 0, 30, 30)),
        "cannot fly between its 2 parts, of 21, 21 positions",
    ),
    "waist": (
        bad(shapely.Polygon([(0, 0), (14, 16), (28, 0), (28, 32), (14, 18), (0, 32)])),
        "cannot fly between its 2 parts",
    ),
    "feet": (bad(BOX, coordinates="feet"), '"coordinates"'),
    "degrees": (bad(BOX, shapely.box(0, 0, 400, 4), metres=False), "feature 2: .*degrees"),
    "between cells": (
        bad(*(shapely.box(0, y, 30, y + 0.01) for y in (0, 5)), shapely.box(0, 0, 0.01, 5)),
        "number_x",
    ),
    "starts": (
        bad(shapely.Polygon([(0, 0), (30, 0), (30, 1), (6, 1), (6, 6), (0, 6)])),
        r"field\.geojson: only 9 starts .*12 UAVs; (?!.*zones)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_field_is_one_clear_line(case: str, tmp_path: Path) -> None:
    path = tmp_path / "field.geojson"
    text, message = BAD[case]
    path.write_text(text)
    options = [f"{KEY}={path}", "experiment.missions.n_agents=12"]
    with pytest.raises(ConfigError, match=f"{KEY}: .*{message}") as caught:
        MissionEnvironment(load_config("params_test.yaml", options), 1, "cpu")
    assert str(caught.value).isprintable()


def test_a_file_that_is_missing_is_named_when_missions_start(tmp_path: Path) -> None:
    """A checkpoint can be read without the file; its missions cannot be flown."""
    config = field_config(tmp_path / "none.geojson")
    with pytest.raises(ConfigError, match=f"^{KEY}: .*does not exist"):
        started(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": 16, "dims": (15.0, 30.0)}, "n_agents"),
        ({"prior": 0.01}, "mapping.prior"),
        ({"prior": 0.38, "sensor": {"model": {"adapt": True}}}, "mapping.prior"),
    ],
)
def test_what_random_fields_do_not_support_is_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        started(field_config("random", **options))


def test_a_file_is_part_of_what_a_training_reads(tmp_path: Path) -> None:
    path = write_field(tmp_path, HOLED)
    before = files_read(field_config(path))
    write_field(tmp_path, OUTLINES[1])
    assert list(before) == [f"{KEY}: {path}"]
    assert files_read(field_config(path)) != before
    assert files_read(field_config("random")) == {}


def test_without_a_field_nothing_is_stored() -> None:
    env, state = started(small_config())
    assert env.fields is None
    assert state.inside.numel() == state.counted.numel() == 0
    random_actions(env, state, torch.Generator().manual_seed(0))
