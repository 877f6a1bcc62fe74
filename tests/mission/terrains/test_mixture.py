"""The mixture of kinds: draws, batches, chunks, recorded missions."""

from __future__ import annotations

import hashlib

import pytest
import torch

from marl_framework.mission.terrains.mixture import Terrain, TerrainDraws
from tests.mission.terrains.small_terrains import KINDS, Discs, configuration, drawn


def test_each_mission_gets_its_own_kind() -> None:
    terrain = Terrain(configuration(*KINDS), "cpu", "test")
    assert terrain.kinds == KINDS
    draws = drawn(terrain, 70)
    truth = terrain.build(draws)
    assert draws.kind.bincount(minlength=7).min() > 0
    for index, kind in enumerate(KINDS):
        alone = Terrain(configuration(kind), "cpu", "test")
        unmixed = TerrainDraws(torch.zeros_like(draws.kind), (terrain.numbers(draws, kind),))
        mine = draws.kind == index
        assert torch.equal(truth[mine], alone.build(unmixed)[mine])


def test_kinds_come_equally_often() -> None:
    assert Terrain(configuration("mixed"), "cpu", "training").kinds == KINDS[:-2]
    draws = drawn(Terrain(configuration("split", "band", "corner"), "cpu", "training"), 3000)
    assert draws.kind.bincount().tolist() == pytest.approx([1000] * 3, abs=100)


@pytest.mark.parametrize(
    ("kinds", "shapes"),
    [
        (("split", "band"), [(2, 10)]),
        (("random_field",), [(2, 62, 77)]),
        (("raster",), [(2, 2)]),
        (("raster", "corner"), [(2, 10), (2, 2)]),
        (("mixed",), [(2, 10), (2, 62, 77)]),
        (("landscape", "raster"), [(2, 2), (2, 2 + 4 * 32 * 4 * 40)]),
    ],
)
def test_only_what_the_kinds_need_is_drawn_and_rectangles_share_theirs(kinds, shapes) -> None:
    draws = drawn(Terrain(configuration(*kinds), "cpu", "training"), 2)
    assert [numbers.shape for numbers in draws.numbers] == shapes


@pytest.mark.parametrize("kind", KINDS)
def test_many_environments_equal_as_many_times_one(kind, device) -> None:
    terrain = Terrain(configuration(kind), device, "training")
    draws = drawn(terrain, 8)
    truth = terrain.build(draws)
    assert truth.dtype == torch.bool
    assert truth.shape == (8, *terrain.shape)
    alone = [terrain.build(draws[e : e + 1]) for e in range(8)]
    assert torch.equal(torch.cat(alone), truth)
    terrain.most_at_once = 3  # two full parts and a rest
    assert torch.equal(terrain.build(draws), truth)
    assert len({t.cpu().numpy().tobytes() for t in truth}) > 5


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_build_compiles_as_one_graph(kind) -> None:
    torch.compiler.reset()  # each terrain is a recompilation of one method; their number is bounded
    terrain = Terrain(configuration(kind), "cpu", "training")
    terrain.most_at_once = 2
    draws = drawn(terrain, 3)
    compiled = torch.compile(terrain.build, fullgraph=True, backend="eager", dynamic=False)
    assert torch.equal(compiled(draws), terrain.build(draws))


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_build_reads_nothing_back_to_the_host(kind) -> None:
    terrain = Terrain(configuration(kind), "meta", "training")  # a read-back raises there
    truth = terrain.build(terrain.draw(3, None))
    assert truth.device.type == "meta"
    assert truth.shape == (3, 62, 77)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="training, validation, test"):
        Terrain(configuration("split"), "cpu", "train")


# Of the missions whose maps hold no transform of floats, from the code as it was before kinds
# were classes. Other numbers mean other missions for every seed.
RECORDED = {
    "split": "3ea7ca462ec1679a",
    "band": "4a3286aae0b4c299",
    "split, band, random_field": "baac0c05d3d53a2e",
    "mixed": "a4f2e0e6ed215048",
    "raster": "3965c59b259f86a9",
    "random_field, raster, corner": "772587a4db41b54b",
    "tests.mission.terrains.small_terrains.Discs, band": "85c172e25a92c73a",
    "raster, tests.mission.terrains.small_terrains.Discs, split": "e80f753a2c320287",
}


@pytest.mark.parametrize("kinds", RECORDED)
def test_seeds_keep_their_missions(kinds: str) -> None:
    digest = hashlib.sha256()
    for seed, num in ((3, 5), (8, 12)):
        terrain = Terrain(configuration(*kinds.split(", ")), "cpu", "training")
        draws = drawn(terrain, num, seed)
        truth = terrain.build(draws)
        digest.update(draws.kind.numpy().tobytes())
        names = terrain.kinds
        exact = [e for e, k in enumerate(draws.kind.tolist()) if names[k] != "random_field"]
        digest.update(truth[exact].numpy().tobytes())
    assert digest.hexdigest()[:16] == RECORDED[kinds]


def test_a_kind_that_needs_much_memory_is_built_in_parts(monkeypatch) -> None:
    parts = []

    def build(self, draws):
        parts.append(len(draws))
        return torch.zeros(len(draws), 62, 77, dtype=torch.bool)

    monkeypatch.setattr(Discs, "bytes_per_mission", 2**28, raising=False)
    monkeypatch.setattr(Discs, "build", build)
    terrain = Terrain(configuration("tests.mission.terrains.small_terrains.Discs"), "cpu", "test")
    terrain.build(drawn(terrain, 5))
    assert parts == [2, 2, 1]
