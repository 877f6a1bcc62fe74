"""The search for races finds them; see `races.py`. Not collected: `test_triton.py` runs it."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.races import RaceError


@triton.jit
def write(target, source, STRIDE: tl.constexpr, READ: tl.constexpr, SIZE: tl.constexpr):
    cells = tl.program_id(0) * STRIDE + tl.arange(0, SIZE)
    values = tl.load(source + cells + READ)
    tl.store(target + cells, values + 1)


def run(stride: int, read: int, shared: bool) -> torch.Tensor:
    target = torch.zeros(16)
    write[(3,)](target, target if shared else torch.zeros(16), stride, read, 4)
    return target


@pytest.mark.parametrize(
    ("stride", "read", "shared"), [(3, 0, False), (4, 1, True), (4, 4, True), (0, 0, False)]
)
def test_programs_that_race_are_found(stride: int, read: int, shared: bool) -> None:
    with pytest.raises(RaceError):
        run(stride, read, shared)


@pytest.mark.parametrize(("stride", "read", "shared"), [(4, 0, True), (4, 1, False)])
def test_programs_that_touch_their_own_cells_pass(stride: int, read: int, shared: bool) -> None:
    assert run(stride, read, shared).sum() == 12
