"""Contract of footprint windows: take readings and fuse them into beliefs.

A step changes only the cells under footprints, and updates pooled maps (area means on the lattice
of X × Y positions). Dimensions: E missions, N UAVs, maps of R × C cells, windows of K_x × K_y
cells. All tensors must be contiguous. Triton requires all tensors on one GPU, or on the CPU under
its interpreter (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_framework.kernels import cells
from marl_framework.kernels.versions import Version, block, check_contiguous, launch, load

_WORD = 2**32 - 1
_MULTIPLIERS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


class Footprint(NamedTuple):
    """Range of map cells that each UAV sees; every field is [E, N] int64."""

    row0: Tensor
    """First map row in the footprint (rows run along x)."""
    row1: Tensor
    """One past the last map row in the footprint."""
    col0: Tensor
    col1: Tensor
    window_row: Tensor
    """First row of the K_x × K_y window, which contains the footprint and lies on the map."""
    window_col: Tensor
    top: Tensor
    """First row of the unclipped footprint square; may lie outside the map."""
    left: Tensor

    def cells(self, window: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the map rows [..., K_x] and columns [..., K_y] of the windows."""
        rows, cols = (torch.arange(k, device=self.row0.device) for k in window)
        return self.window_row.unsqueeze(-1) + rows, self.window_col.unsqueeze(-1) + cols

    def flat_index(self, window: tuple[int, ...], columns: int) -> Tensor:
        """Return the flat map indices of window cells, [..., K_x·K_y], for maps of C `columns`."""
        rows, cols = self.cells(window)
        return (rows.unsqueeze(-1) * columns + cols.unsqueeze(-2)).flatten(-2)

    def inside(self, window: tuple[int, ...], of: Footprint) -> tuple[Tensor, Tensor]:
        """Return which window rows [..., K_x] and columns [..., K_y] lie in the footprints `of`."""
        rows, cols = self.cells(window)
        return (
            (rows >= of.row0.unsqueeze(-1)) & (rows < of.row1.unsqueeze(-1)),
            (cols >= of.col0.unsqueeze(-1)) & (cols < of.col1.unsqueeze(-1)),
        )


class Optics(NamedTuple):
    """Camera tables, indexed by altitude and by position; see `mission.camera.Camera`."""

    sides: Tensor
    """Sides of the unclipped footprints along x and y [cells], [Z, 2] int64."""
    flip_below: Tensor
    """Thresholds for random bits: lower bits give a false alarm (first) or a miss, [Z, 2] int16."""
    odds: Tensor
    """Odds of a positive and a negative reading, divided by the prior odds, [Z, 2] float32."""
    map_weights: tuple[Tensor, Tensor]
    """Area weights from windows to the lattice, [X, Z, X, K_x] and [Y, Z, Y, K_y] float32."""
    tile_weights: tuple[Tensor, Tensor]
    """Area weights from windows to X × Y parts of the unclipped footprint, same shapes."""

    def of(self, weights: tuple[Tensor, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights at positions, [E, N, X, K_x] and [E, N, Y, K_y]."""
        x, y, z = positions.unbind(-1)
        return weights[0][x, z], weights[1][y, z]


class View(NamedTuple):
    """UAV positions in E missions, with the footprints and odds that follow from them."""

    optics: Optics
    positions: Tensor
    """Lattice indices, [E, N, 3] int64."""
    boxes: Tensor
    """Footprints, [E, N, 8] int64: the fields of a `Footprint`."""
    odds: Tensor
    """`optics.odds` at the UAVs' altitudes, [E, N, 2]."""
    active: Tensor
    """Missions to update, [E] bool."""


class Maps(NamedTuple):
    """Beliefs and area means to update: own beliefs [E, N, …] or global beliefs [E, …]."""

    beliefs: Tensor
    """P(region of interest), [E, N, R, C] float32."""
    pooled: Tensor
    """Area means of the beliefs, [E, N, X, Y] float32."""
    uncertainty: Tensor
    """Area means of p·H(p), [E, N, X, Y] float32; updated only if `tracks`."""
    tracks: bool
    prior: float | None = None
    """Value to which `beliefs` are reset before the update; None for no reset."""


def read(
    version: Version,
    view: View,
    truth: Tensor,
    bits: Tensor,
    flip_below: Tensor,
    shift: Tensor | None,
    readings: Tensor,
    pooled: Tensor,
    inside: Tensor | None = None,
) -> None:
    """Take a reading with each UAV.

    Args:
        version: kernel version.
        view: positions and footprints of the UAVs.
        truth: region of interest, [E, R, C] bool.
        bits: uniform 16-bit integers, [E, N, K_x, K_y] int16; or, with Triton, keys from which the
            kernel draws these bits (`window_bits`), [E] int64.
        flip_below: see `Optics.flip_below`; for each UAV, [E, N, 2] int16.
        shift: rows and columns from each footprint to the cells that are read instead,
            [E, N, 2] int64; beyond the map its edge continues. None if all are 0.
        readings: +1, -1, or 0 outside the footprint, [E, N, K_x, K_y] int8, written.
        pooled: area means of readings over X × Y parts of each unclipped footprint,
            [E, N, X, Y] float32, written.
        inside: cells of a field, [E, R, C] bool; others always read -1. None for all.
    """
    if version is not Version.PLAIN:
        run = _read_windows if version is Version.TRITON else load("windows", version).read_windows
        sides = view.optics.sides[view.positions[..., 2]]
        ground, masks = (truth, bits, flip_below, view.boxes), (shift, inside, view.active)
        run(*ground, sides, *masks, readings, pooled)
        return
    footprint, window = Footprint(*view.boxes.unbind(-1)), readings.shape[-2:]
    laid = index = footprint.flat_index(window, truth.shape[-1])
    if shift is not None:
        seen = footprint.cells(window)
        rows, cols = (
            (cells + by.unsqueeze(-1)).clamp(0, size - 1)
            for cells, by, size in zip(seen, shift.unbind(-1), truth.shape[-2:], strict=True)
        )
        index = (rows.unsqueeze(-1) * truth.shape[-1] + cols.unsqueeze(-2)).flatten(-2)
    interest = truth.flatten(1).gather(1, index.flatten(1)).view_as(bits)
    false_alarm, miss = flip_below[..., None, None, :].unbind(-1)
    rows, cols = footprint.inside(window, footprint)
    sign = torch.where(interest, bits >= miss, bits < false_alarm).to(torch.int8) * 2 - 1
    if inside is not None:
        sign = sign.where(inside.flatten(1).gather(1, laid.flatten(1)).view_as(sign), -1)
    taken = sign * rows.unsqueeze(-1) * cols.unsqueeze(-2)
    readings.copy_(torch.where(view.active.view(-1, 1, 1, 1), taken, readings))
    pooled.copy_(pool_readings(view.optics, view.positions, readings))


def pool_readings(optics: Optics, positions: Tensor, readings: Tensor) -> Tensor:
    """Compute the area means of readings with plain operators; see `read`."""
    return cells.area_pool(readings.float(), *optics.of(optics.tile_weights, positions))


def window_bits(keys: Tensor, n: int, window: tuple[int, ...]) -> Tensor:
    """Draw the random bits of all windows, [E, N, K_x, K_y] int16, from keys [E] int64.

    Each counter value gives the bits of eight cells in a window row.
    """
    rows, cols = window
    counters_per_row = -(-cols // 8)
    counters = torch.arange(n * rows * counters_per_row, device=keys.device)
    words = philox(keys.unsqueeze(1), counters.expand(len(keys), -1))
    cells = torch.stack((words & 0xFFFF, words >> 16), -1)
    cells = cells.view(len(keys), n, rows, 8 * counters_per_row)
    return cells[..., :cols].to(torch.int16).contiguous()


def philox(keys: Tensor, counters: Tensor) -> Tensor:
    """Return the four 32-bit words of Philox4x32-10 for each counter, [..., 4] int64."""
    zeros = torch.zeros_like(counters)
    words, key = [counters, zeros, zeros, zeros], [keys & _WORD, keys >> 32 & _WORD]
    for _ in range(10):
        first, second = (words[k] * m for k, m in zip((0, 2), _MULTIPLIERS, strict=True))
        words = [
            (second >> 32 & _WORD) ^ words[1] ^ key[0],
            second & _WORD,
            (first >> 32 & _WORD) ^ words[3] ^ key[1],
            first & _WORD,
        ]
        key = [(k + step) & _WORD for k, step in zip(key, _STEPS, strict=True)]
    return torch.stack(words, -1)


def fuse_own(
    version: Version,
    view: View,
    readings: Tensor,
    heard: Tensor,
    maps: Maps,
    takes_own: bool = True,
    takes_heard: bool = True,
) -> None:
    """Fuse each UAV's own reading, then heard readings by UAV id, into its own belief.

    Args:
        version: kernel version.
        view: positions and footprints of the UAVs.
        readings: see `read`, [E, N, K_x, K_y] int8.
        heard: whether UAV i hears UAV j, [E, N, N] bool; the diagonal is ignored.
        maps: own beliefs and area means, updated.
        takes_own: whether to fuse own readings.
        takes_heard: whether to fuse heard readings.
    """
    if version is not Version.PLAIN:
        *tensors, tracks, prior = maps
        run = _fuse_own if version is Version.TRITON else load("windows", version).fuse_own
        inputs = readings, heard, view.boxes, view.odds, view.active
        run(*inputs, *tensors, takes_own, takes_heard, tracks, prior)
        return
    _reset_to_prior(maps, view.active)
    n, window = heard.shape[1], readings.shape[-2:]
    index = Footprint(*view.boxes.unbind(-1)).flat_index(window, maps.beliefs.shape[-1])
    rows, cols = view.optics.of(view.optics.map_weights, view.positions)
    odds, beliefs, signs = view.odds.unsqueeze(-2), maps.beliefs.flatten(2), readings.flatten(2)

    def update(senders: slice, takes: Tensor) -> None:
        at = index[:, senders].expand(-1, n, -1)
        before = beliefs.gather(2, at)
        after = cells.bayes_update(before, signs[:, senders] * takes, odds[:, senders])
        beliefs.scatter_(2, at, after)
        for pooled, change in _changes(maps, before, after):
            change = change.unflatten(2, window)
            pooled.add_(cells.area_pool(change, rows[:, senders], cols[:, senders]))

    if takes_own:
        update(slice(None), view.active.view(-1, 1, 1))
    if takes_heard:  # one sender at a time, for all missions and receivers
        itself = torch.eye(n, dtype=torch.bool, device=heard.device)
        listens = heard & ~itself & view.active.view(-1, 1, 1)
        for j in range(n):
            update(slice(j, j + 1), listens[:, :, j : j + 1])


def fuse_global(version: Version, view: View, readings: Tensor, maps: Maps) -> Tensor:
    """Fuse all readings into global beliefs, by UAV id; for the arguments, see `fuse_own`.

    Returns the sums over all changed cells (each counted once) of w(after)·(H(before) - H(after)),
    (w(after) - w(before))·H(before) and H(before) - H(after), [3, E] float64.
    """
    if version is not Version.PLAIN:
        run = _fuse_global if version is Version.TRITON else load("windows", version).fuse_global
        totals: Tensor = run(readings, view.boxes, view.odds, view.active, *maps)
        return totals
    _reset_to_prior(maps, view.active)
    footprint, window = Footprint(*view.boxes.unbind(-1)), readings.shape[-2:]
    index = footprint.flat_index(window, maps.beliefs.shape[-1])
    signs, odds = readings.flatten(2) * view.active.view(-1, 1, 1), view.odds.unsqueeze(-2)
    belief = maps.beliefs.flatten(1)
    before = belief.gather(1, index.flatten(1)).view_as(signs)
    for j in range(signs.shape[1]):
        p = belief.gather(1, index[:, j])
        belief.scatter_(1, index[:, j], cells.bayes_update(p, signs[:, j], odds[:, j]))
    after = belief.gather(1, index.flatten(1)).view_as(signs)
    counted = _first_seen_by(footprint, window)
    rows, cols = view.optics.of(view.optics.map_weights, view.positions)
    for pooled, change in _changes(maps, before, after):
        pooled.add_(cells.area_pool(change.view_as(counted) * counted, rows, cols).sum(1))
    weight, entropy_before = cells.interest_weight(after), cells.entropy(before)
    removed = entropy_before - cells.entropy(after)
    reweighted = (weight - cells.interest_weight(before)) * entropy_before
    sums = (
        (values * counted.flatten(2)).flatten(1).sum(1, dtype=torch.float64)
        for values in (weight * removed, reweighted, removed)
    )
    return torch.stack(list(sums))


def _changes(maps: Maps, before: Tensor, after: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each pooled map together with the cell changes that update it."""
    changes = [(maps.pooled, after - before)]
    if maps.tracks:
        changes.append((maps.uncertainty, cells.uncertainty(after) - cells.uncertainty(before)))
    return changes


def _first_seen_by(footprint: Footprint, window: tuple[int, ...]) -> Tensor:
    """Return which footprint cells no UAV of a lower id sees, [E, N, K_x, K_y] bool."""
    windows = Footprint(*(field.unsqueeze(2) for field in footprint))
    others = Footprint(*(field.unsqueeze(1) for field in footprint))
    rows, cols = windows.inside(window, others)  # [E, N windows, N footprints, K]
    earlier = torch.ones(2 * rows.shape[1:2], device=rows.device).tril(-1)
    covered = (rows * earlier.unsqueeze(-1)).mT @ cols.float()
    own_rows, own_cols = footprint.inside(window, footprint)
    return (covered == 0) & own_rows.unsqueeze(-1) & own_cols.unsqueeze(-2)


def _reset_to_prior(maps: Maps, active: Tensor) -> None:
    if maps.prior is not None:
        shape = -1, *(1,) * (maps.beliefs.dim() - 1)
        maps.beliefs.masked_fill_(active.view(shape), maps.prior)


# Triton -----------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """Compile-time constants of the kernels; for the letters, see the module docstring."""

    N: int
    KX: int
    KY: int
    R: int
    C: int
    X: int
    Y: int
    BLOCK_Y: int
    BLOCK_N: int
    keys: bool = False
    """Whether the kernel draws random bits from keys."""
    shifts: bool = False
    """Whether cells beside the footprints are read."""
    field: bool = False
    """Whether there are cells outside a field."""
    blank: bool = False
    """Whether beliefs are reset to the prior first."""
    team: bool = False
    """Whether each mission has one map; else each UAV has one, with `own` or `heard` readings."""
    own: bool = False
    heard: bool = False
    tracks: bool = False

    @classmethod
    def of(cls, readings: Tensor, maps: Tensor, pooled: Tensor, **flags: bool) -> Sizes:
        """Return the constants for the shapes of readings, whole maps and pooled maps."""
        n, kx, ky = readings.shape[1:]
        (r, c), (x, y) = maps.shape[-2:], pooled.shape[-2:]
        return cls(n, kx, ky, r, c, x, y, block(y), block(n), **flags)


_FUSE = {"num_warps": 2, "maxnreg": 96}  # ten programs of a multiprocessor: fastest on an H100
_OPTIONS = {"num_warps": 4, "maxnreg": 96}  # five programs of a multiprocessor, and no spills


@torch.library.custom_op("marl_framework::read_windows", mutates_args=("readings", "pooled"))
def _read_windows(
    truth: Tensor,
    bits: Tensor,
    flip_below: Tensor,
    boxes: Tensor,
    sides: Tensor,
    shift: Tensor | None,
    inside: Tensor | None,
    active: Tensor,
    readings: Tensor,
    pooled: Tensor,
) -> None:
    """See `read`; `sides` are [E, N, 2]."""
    keys = bits.dtype == torch.int64
    flags = {"keys": keys, "shifts": shift is not None, "field": inside is not None}
    # Placeholders that the kernel does not read.
    given = sides if shift is None else shift, truth if inside is None else inside
    tensors = truth, bits, flip_below, boxes, sides, *given, active, readings, pooled
    check_contiguous(*tensors)
    sizes = Sizes.of(readings, truth, pooled, **flags)
    launch("windows.read", (pooled.shape[:3].numel(),), *tensors, S=sizes, **_OPTIONS)


@torch.library.custom_op(
    "marl_framework::fuse_own", mutates_args=("beliefs", "pooled", "pooled_uncertainty")
)
def _fuse_own(
    readings: Tensor,
    heard: Tensor,
    boxes: Tensor,
    odds: Tensor,
    active: Tensor,
    beliefs: Tensor,
    pooled: Tensor,
    pooled_uncertainty: Tensor,
    takes_own: bool,
    takes_heard: bool,
    tracks: bool,
    prior: float | None,
) -> None:
    """See `fuse_own`; `odds` are [E, N, 2]."""
    maps = Maps(beliefs, pooled, pooled_uncertainty, tracks, prior)
    _fuse((readings, heard, boxes, odds, active), maps, own=takes_own, heard=takes_heard)


@torch.library.custom_op(
    "marl_framework::fuse_global", mutates_args=("belief", "pooled", "pooled_uncertainty")
)
def _fuse_global(
    readings: Tensor,
    boxes: Tensor,
    odds: Tensor,
    active: Tensor,
    belief: Tensor,
    pooled: Tensor,
    pooled_uncertainty: Tensor,
    tracks: bool,
    prior: float | None,
) -> Tensor:
    """See `fuse_global`; `odds` are [E, N, 2]."""
    maps = Maps(belief, pooled, pooled_uncertainty, tracks, prior)
    inputs = readings, active, boxes, odds, active  # first `active`: placeholder for `heard`
    return _fuse(inputs, maps, team=True, own=True, heard=True)


@_fuse_global.register_fake
def _(readings: Tensor, *arguments: Any) -> Tensor:
    return readings.new_empty(3, readings.shape[0], dtype=torch.float64)


def _fuse(inputs: tuple[Tensor, ...], maps: Maps, **flags: bool) -> Tensor:
    """Launch `fuse` and `add_parts`; return the sums of `fuse_global`, undefined for own maps."""
    beliefs, pooled, pooled_uncertainty, tracks, prior = maps
    check_contiguous(*inputs, *maps[:3])
    flags |= {"tracks": tracks, "blank": prior is not None}
    sizes = Sizes.of(inputs[0], beliefs, pooled, **flags)
    e, x, y = len(beliefs), sizes.X, sizes.Y
    number = pooled.numel() // (x * y)
    parts = pooled.new_empty(2, number, x, 2, y)
    sums = pooled.new_empty(e, x, 3, dtype=torch.float64)
    totals = pooled.new_empty(3, e, dtype=torch.float64)
    written, start = (beliefs, parts, sums), 0.5 if prior is None else prior
    launch("windows.fuse", (number * x,), *inputs, *written, start, S=sizes, **_FUSE)
    added = parts, sums, pooled, pooled_uncertainty, totals
    options = {**_OPTIONS, "BLOCK_X": block(x)}
    sizes = sizes._replace(blank=False, own=False, heard=False)  # `add_parts` ignores these flags
    launch("windows.add_parts", (number,), *added, S=sizes, **options)
    return totals
