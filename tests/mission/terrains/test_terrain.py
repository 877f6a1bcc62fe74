"""Synthetic ground truths: against a plain loop, their areas, their spectrum, their seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.config.model import Config
from marl_framework.config.types import TERRAIN_KINDS
from marl_framework.mission.terrains.terrain import (
    RECTANGULAR_KINDS,
    Terrain,
    TerrainDraws,
    above_half_range,
    field_amplitude,
    random_field,
    rasterise,
)

SAMPLE = {"path": "matplotlib:jacksboro_fault_dem.npz", "resolution": 1.0}
# Lowest and highest share of the map that a kind covers; complements cover the rest.
AREAS = {
    "split": (0.30, 0.60),
    "corner": (0.55**2, 0.74**2),
    "band": (0.65 - 0.34, 0.79 - 0.20),
    "two_corners": (2 * 0.40**2 - 0.08**2, 2 * 0.54**2),
    "four_corners": (4 * 0.28**2, 4 * 0.37**2),
}


def configuration(*kinds: str, pixels: int = 9, x_dim: float = 40.0, **simulation) -> Config:
    """Maps of 62 × 77 cells, of 77 × 77 where x_dim is 50."""
    return Config.model_validate(
        {
            "environment": {"x_dim": x_dim},
            "sensor": {
                "pixel": {"number_x": pixels, "number_y": pixels},
                "simulation": {"kinds": kinds, "raster": SAMPLE, **simulation},
            },
        }
    )


def drawn(terrain: Terrain, num: int, seed: int = 0) -> TerrainDraws:
    return terrain.draw(num, torch.Generator(terrain.device).manual_seed(seed))


def by_hand(kind: str, u: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """One ground truth, as the rule of its kind reads, from its ten uniform numbers."""
    truth = np.zeros((rows, cols), bool)

    def cells(index: int, low: float, high: float, size: int) -> int:
        return math.floor((low + (high - low) * u[2 + index]) * size)

    def block(index: int, low: float, high: float, far_x: bool, far_y: bool) -> None:
        n, m = cells(index, low, high, rows), cells(index + 1, low, high, cols)
        for r in range(rows - n, rows) if far_x else range(n):
            for c in range(cols - m, cols) if far_y else range(m):
                truth[r, c] = True

    if kind == "split":
        side = int(4 * u[0])
        n, m = cells(0, 0.30, 0.60, rows), cells(0, 0.30, 0.60, cols)
        part = [np.s_[:n], np.s_[rows - n :], np.s_[:, :m], np.s_[:, cols - m :]][side]
        truth[part] = True
    elif kind == "corner":
        block(0, 0.55, 0.74, *divmod(int(4 * u[0]), 2))
    elif kind == "band":
        if u[0] < 0.5:
            truth[cells(0, 0.20, 0.34, rows) : cells(1, 0.65, 0.79, rows)] = True
        else:
            truth[:, cells(0, 0.20, 0.34, cols) : cells(1, 0.65, 0.79, cols)] = True
    elif kind == "two_corners":
        block(0, 0.40, 0.54, False, u[0] >= 0.5)
        block(2, 0.40, 0.54, True, u[0] < 0.5)
    else:
        for k in range(4):
            block(2 * k, 0.28, 0.37, *divmod(k, 2))
    return ~truth if kind in ("band", "four_corners") and u[1] >= 0.5 else truth


@pytest.mark.parametrize("kind", RECTANGULAR_KINDS)
def test_rectangular_kinds_equal_a_loop_over_environments(kind, device) -> None:
    terrain = Terrain(configuration(kind), device, "training")
    draws = drawn(terrain, 40)
    truth = terrain.build(draws).cpu().numpy()
    assert draws.uniform is not None
    expected = [by_hand(kind, u, *terrain.shape) for u in draws.uniform.cpu().numpy()]
    assert truth.shape == (40, 62, 77)
    np.testing.assert_array_equal(truth, np.stack(expected))


@pytest.mark.parametrize("kind", RECTANGULAR_KINDS)
def test_areas_lie_in_the_range_of_the_kind_and_reach_its_ends(kind) -> None:
    terrain = Terrain(configuration(kind), "cpu", "training")
    draws = drawn(terrain, 2000)
    share = terrain.build(draws).double().mean((1, 2))
    if kind in ("band", "four_corners"):
        assert draws.uniform is not None
        complement = draws.uniform[:, 1] >= 0.5
        assert 900 < int(complement.sum()) < 1100
        share = torch.where(complement, 1 - share, share)
    low, high = AREAS[kind]
    cell = 2.5 / 62  # floors take up to a cell from each side of a block
    assert low - cell < share.min() < share.max() <= high + cell
    assert share.max() - share.min() > 0.5 * (high - low)


@pytest.mark.parametrize(("kind", "places"), [("split", 4), ("corner", 4), ("two_corners", 2)])
def test_every_side_and_corner_comes_equally_often(kind, places) -> None:
    terrain = Terrain(configuration(kind), "cpu", "training")
    truth = terrain.build(drawn(terrain, 1000))
    ends = truth[:, ::61, ::76].flatten(1).long() @ torch.tensor([1, 2, 4, 8])  # the map's corners
    found, times = ends.unique(return_counts=True)
    assert len(found) == places
    assert times.min() > 0.8 * 1000 / places


def test_bands_run_along_both_axes() -> None:
    terrain = Terrain(configuration("band"), "cpu", "training")
    truth = terrain.build(drawn(terrain, 200))
    along_x = (truth == truth[:, :, :1]).all((1, 2))
    along_y = (truth == truth[:, :1]).all((1, 2))
    assert bool((along_x ^ along_y).all())
    assert 70 < int(along_x.sum()) < 130


@pytest.mark.parametrize("kind", ["band", "four_corners"])
def test_complement_inverts_every_cell(kind) -> None:
    terrain = Terrain(configuration(kind), "cpu", "training")
    draws = drawn(terrain, 20)
    truth = terrain.build(draws)
    assert draws.uniform is not None
    draws.uniform[:, 1] = 1 - draws.uniform[:, 1]
    assert torch.equal(terrain.build(draws), ~truth)


@given(st.lists(st.lists(st.integers(-2, 9), min_size=16, max_size=16), min_size=1, max_size=3))
def test_rasterised_unions_equal_a_loop_over_cells(numbers) -> None:
    edges = torch.tensor(numbers).view(-1, 4, 4)
    complement = edges[:, 0, 0] % 2 == 0
    truth = rasterise(edges, complement, (7, 5))
    for e, rectangles in enumerate(edges.tolist()):
        for r in range(7):
            for c in range(5):
                inside = any(r0 <= r < r1 and c0 <= c < c1 for r0, r1, c0, c1 in rectangles)
                assert bool(truth[e, r, c]) == (inside != bool(complement[e]))


# Random fields ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(12, 12), (9, 14), (8, 15)])
def test_field_equals_filtering_mode_by_mode_with_numpy(shape) -> None:
    noise = torch.randn(2, *shape)
    field = random_field(noise, field_amplitude(shape, (30.0, 45.0), 3.0))
    spectrum = np.fft.fft2(noise.double().numpy())
    for r in range(shape[0]):
        for c in range(shape[1]):
            m = min(r, shape[0] - r) / 30.0
            n = min(c, shape[1] - c) / 45.0
            k = math.hypot(m, n) * 45.0
            spectrum[:, r, c] *= k**-1.5 if k > 0 else 0.0
    expected = np.fft.ifft2(spectrum)
    np.testing.assert_allclose(expected.imag, 0, atol=1e-9)
    np.testing.assert_allclose(field.numpy(), expected.real, atol=1e-5)


@pytest.mark.parametrize("exponent", [1.0, 3.0, 5.0])
def test_power_spectrum_falls_with_the_exponent(exponent) -> None:
    size = 96
    field = random_field(
        torch.randn(32, size, size), field_amplitude((size, size), (1.0, 1.0), exponent)
    )
    power = torch.fft.rfft2(field).abs().square().mean(0)[: size // 2, : size // 2]
    index = torch.arange(size // 2)
    k = torch.hypot(index[:, None].double(), index.double())
    ring = (k >= 2) & (k <= 40)
    slope = np.polyfit(k[ring].log().numpy(), power[ring].log().numpy(), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.1)


def test_fields_are_cut_at_half_of_their_own_range() -> None:
    terrain = Terrain(configuration("random_field"), "cpu", "training")
    draws = drawn(terrain, 12)
    truth = terrain.build(draws).numpy()
    assert draws.noise is not None
    amplitude = field_amplitude(terrain.shape, (40.0, 50.0), 5.0)
    for e in range(12):
        field = random_field(draws.noise[e : e + 1], amplitude)[0].numpy()
        scaled = (field - field.min()) / (field.max() - field.min())
        clear = np.abs(scaled - 0.5) > 1e-5
        assert clear.mean() > 0.999
        np.testing.assert_array_equal(truth[e][clear], scaled[clear] > 0.5)


def test_half_range_is_taken_per_environment() -> None:
    field = torch.tensor([[[0.0, 1.0], [4.0, 10.0]], [[-8.0, -7.0], [-6.5, -4.0]]])
    # halves: 5 and -6
    assert above_half_range(field).tolist() == [[[False, False], [False, True]]] * 2


# Kinds, draws, batches -------------------------------------------------------------------------


def test_each_environment_gets_its_own_kind() -> None:
    terrain = Terrain(configuration(*TERRAIN_KINDS), "cpu", "test")
    assert terrain.kinds == TERRAIN_KINDS
    draws = drawn(terrain, 70)
    truth = terrain.build(draws)
    assert draws.kind.bincount(minlength=7).min() > 0
    for index, kind in enumerate(TERRAIN_KINDS):
        alone = Terrain(configuration(kind), "cpu", "test")
        unmixed = TerrainDraws(
            torch.zeros_like(draws.kind),
            draws.uniform if kind in RECTANGULAR_KINDS else None,
            draws.noise if kind == "random_field" else None,
            draws.window if kind == "raster" else None,
            draws.symmetry if kind == "raster" else None,
        )
        mine = draws.kind == index
        assert torch.equal(truth[mine], alone.build(unmixed)[mine])


def test_kinds_come_equally_often() -> None:
    terrain = Terrain(configuration("mixed"), "cpu", "training")
    draws = drawn(Terrain(configuration("split", "band", "corner"), "cpu", "training"), 3000)
    assert terrain.kinds == TERRAIN_KINDS[:-1]
    assert draws.kind.bincount().tolist() == pytest.approx([1000] * 3, abs=100)


@pytest.mark.parametrize(
    ("kinds", "needed"),
    [
        (("split", "band"), {"uniform"}),
        (("random_field",), {"noise"}),
        (("raster",), {"window", "symmetry"}),
        (("corner", "raster"), {"uniform", "window", "symmetry"}),
        (("mixed",), {"uniform", "noise"}),
    ],
)
def test_only_what_the_kinds_need_is_drawn(kinds, needed) -> None:
    draws = drawn(Terrain(configuration(*kinds), "cpu", "training"), 2)
    names = ("uniform", "noise", "window", "symmetry")
    assert {name for name in names if getattr(draws, name) is not None} == needed


@pytest.mark.parametrize("kind", TERRAIN_KINDS)
def test_many_environments_equal_as_many_times_one(kind, device, monkeypatch) -> None:
    terrain = Terrain(configuration(kind), device, "training")
    draws = drawn(terrain, 8)
    truth = terrain.build(draws)
    assert truth.dtype == torch.bool
    assert truth.shape == (8, *terrain.shape)
    alone = [terrain.build(draws[e : e + 1]) for e in range(8)]
    assert torch.equal(torch.cat(alone), truth)
    monkeypatch.setattr(terrain, "_chunk", 3)  # two full chunks and a rest
    assert torch.equal(terrain.build(draws), truth)
    assert len({t.cpu().numpy().tobytes() for t in truth}) > 5


@pytest.mark.parametrize("kind", TERRAIN_KINDS)
def test_a_seed_fixes_the_terrain(kind) -> None:
    def truth(seed: int) -> torch.Tensor:
        terrain = Terrain(configuration(kind), "cpu", "validation")
        return terrain.build(drawn(terrain, 6, seed))

    assert torch.equal(truth(1), truth(1))
    assert not torch.equal(truth(1), truth(2))


@pytest.mark.parametrize("kind", [*TERRAIN_KINDS, "mixed"])
def test_build_compiles_as_one_graph(kind, monkeypatch) -> None:
    torch.compiler.reset()  # each terrain is a recompilation of one method; their number is bounded
    terrain = Terrain(configuration(kind), "cpu", "training")
    monkeypatch.setattr(terrain, "_chunk", 2)
    draws = drawn(terrain, 3)
    compiled = torch.compile(terrain.build, fullgraph=True, backend="eager", dynamic=False)
    assert torch.equal(compiled(draws), terrain.build(draws))


@pytest.mark.parametrize("kind", [*TERRAIN_KINDS, "mixed"])
def test_build_reads_nothing_back_to_the_host(kind) -> None:
    terrain = Terrain(configuration(kind), "meta", "training")  # a read-back raises there
    truth = terrain.build(terrain.draw(3, None))
    assert truth.device.type == "meta"
    assert truth.shape == (3, 62, 77)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="training, validation, test"):
        Terrain(configuration("split"), "cpu", "train")
