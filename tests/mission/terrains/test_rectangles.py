"""Rectangular terrains: against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.mission.terrains.mixture import Terrain
from marl_framework.mission.terrains.rectangles import rasterise
from tests.mission.terrains.small_terrains import RECTANGULAR, configuration, drawn


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


@pytest.mark.parametrize("kind", RECTANGULAR)
def test_rectangular_kinds_equal_a_loop_over_environments(kind, device) -> None:
    terrain = Terrain(configuration(kind), device, "training")
    draws = drawn(terrain, 40)
    truth = terrain.build(draws).cpu().numpy()
    expected = [by_hand(kind, u, *terrain.shape) for u in draws.numbers[0].cpu().numpy()]
    assert truth.shape == (40, 62, 77)
    np.testing.assert_array_equal(truth, np.stack(expected))


@given(
    st.lists(st.lists(st.integers(-2, 9), min_size=16, max_size=16), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_rasterised_unions_equal_a_loop_over_cells(numbers, rectangles) -> None:
    edges = torch.tensor(numbers).view(-1, 4, 4)[:, :rectangles]
    complement = edges[:, 0, 0] % 2 == 0
    truth = rasterise(edges, (7, 5), complement)
    for e, rectangles in enumerate(edges.tolist()):
        for r in range(7):
            for c in range(5):
                inside = any(r0 <= r < r1 and c0 <= c < c1 for r0, r1, c0, c1 in rectangles)
                assert bool(truth[e, r, c]) == (inside != bool(complement[e]))
