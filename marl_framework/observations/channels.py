"""One function for each map the networks see (Westheider et al. 2023, section IV-A).

All maps are batched over E missions and N UAVs and lie on the planning lattice, [..., X, Y].
Nothing here knows a configuration or keeps a state.
"""

from __future__ import annotations

import torch
from kornia.geometry.transform import remap
from torch import Tensor

from marl_framework.mission.area import area_pool, covered, grid_coordinates
from marl_framework.mission.belief import clamp_probability, weighted_entropy
from marl_framework.mission.camera import Footprint

UNSEEN = 0.5
"""Value of footprint maps where nobody looks."""


def share_left(t: Tensor, budget: int | Tensor) -> Tensor:
    """Return the share of the moves that missions have left, [E] float32.

    Args:
        t: moves made so far, [E].
        budget: moves before the last one, of all missions or [E].
    """
    return (budget - t).to(torch.float32) / budget


def budget_map(left: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the share of the budget that is left, constant over each map: [E, N, X, Y].

    Args:
        left: that share, of each UAV, [E, N].
        shape: (X, Y).
    """
    return left.unsqueeze(-1).unsqueeze(-1).expand(*left.shape, *shape)


def number_map(numbers: Tensor, n_agents: int, shape: tuple[int, int]) -> Tensor:
    """Return a number of each mission, [E], constant over the map of each UAV: [E, N, X, Y]."""
    return numbers.view(-1, 1, 1, 1).expand(-1, n_agents, *shape)


def agent_id_map(n_agents: int, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return (i + 1)/N for UAV i, constant over each map: [N, X, Y]."""
    ids = torch.arange(1, n_agents + 1, device=device, dtype=torch.float32) / n_agents
    return ids.view(-1, 1, 1).expand(-1, *shape).contiguous()


def agent_id_map_of_teams(sizes: Tensor, n_agents: int, shape: tuple[int, int]) -> Tensor:
    """Return the same for teams of k ≤ N UAVs, (i + 1)/k, 1 for UAVs beyond: [E, N, X, Y].

    Args:
        sizes: k, [E] int64.
        n_agents: N.
        shape: (X, Y).
    """
    size = sizes.unsqueeze(1)
    ids = torch.arange(1, n_agents + 1, device=sizes.device).minimum(size) / size
    return ids.view(*ids.shape, 1, 1).expand(-1, -1, *shape)


def paint(
    cells: Tensor, values: Tensor, order: Tensor, background: float, shape: tuple[int, int]
) -> Tensor:
    """Write one value per UAV into the UAVs' cells; the last one written stays.

    Args:
        cells: flat lattice cell of each UAV, [E, N].
        values: value of UAV j, [E, N].
        order: when the map's owner i writes UAV j's value, [E, M, N] int64; -1 = never.
        background: value of the other cells.
        shape: (X, Y).

    Returns:
        Maps [E, M, X, Y].
    """
    same = (cells.unsqueeze(2) == cells.unsqueeze(1)).unsqueeze(1)  # [E, 1, N, N]
    overwritten = (same & (order.unsqueeze(2) > order.unsqueeze(3))).any(-1)  # by a later one
    stays = ((order >= 0) & ~overwritten).to(values.dtype)
    at = torch.arange(shape[0] * shape[1], device=cells.device)
    where = (cells.unsqueeze(-1) == at).to(values.dtype)  # [E, N, X·Y]
    # At most one value stays in a cell, so these sums pick it exactly.
    painted = (stays * values.unsqueeze(1)) @ where
    touched = stays @ where
    return torch.where(touched > 0, painted, background).unflatten(2, shape)


def position_map(
    cells: Tensor, levels: Tensor, heard: Tensor, planar: Tensor, shape: tuple[int, int]
) -> Tensor:
    """Return agent-centred maps of the UAVs each UAV knows of: [E, N, X, Y].

    The map's centre (X//2, Y//2) is the UAV itself; 0 beyond the lattice, 1 on it, and the
    altitude level where the UAV or one it heard is.

    Args:
        cells: flat lattice cells [E, N].
        levels: altitude levels (z + 1)/(Z + 1) [E, N].
        heard: who hears whom [E, N, N].
        planar: lattice indices (x, y) [E, N, 2].
        shape: (X, Y).
    """
    ids = torch.arange(cells.shape[1], device=cells.device)
    own_first = (ids + 1) * (ids.unsqueeze(1) != ids)
    order = torch.where(heard, own_first, -1)
    maps = paint(cells, levels, order, 1.0, shape)
    return centre_on(maps.unsqueeze(2), planar).squeeze(2)


def centre_on(maps: Tensor, planar: Tensor) -> Tensor:
    """Shift maps so that each UAV's own lattice cell comes to the centre (X//2, Y//2).

    Cells from beyond the lattice are 0. `kornia.geometry.transform.remap` at the cells' centres
    with nearest sampling copies values exactly.

    Args:
        maps: [E, N, C, X, Y].
        planar: lattice indices (x, y), [E, N, 2].
    """
    x, y = maps.shape[-2:]
    at = planar.flatten(0, 1)
    rows = torch.arange(x, device=maps.device) - x // 2 + at[:, :1]
    cols = torch.arange(y, device=maps.device) - y // 2 + at[:, 1:]
    shifted = remap(
        maps.flatten(0, 1),
        map_x=grid_coordinates(cols.to(maps.dtype), y).unsqueeze(1).expand(-1, x, -1),
        map_y=grid_coordinates(rows.to(maps.dtype), x).unsqueeze(2).expand(-1, -1, y),
        mode="nearest",
        padding_mode="zeros",
        align_corners=True,
        normalized_coordinates=True,
    )
    return shifted.view_as(maps)


def entropy_map(pooled_belief: Tensor) -> Tensor:
    """Return w(g)·H(g) of pooled beliefs g, any shape [..., X, Y]."""
    return weighted_entropy(pooled_belief)


def probability_map(pooled_belief: Tensor) -> Tensor:
    """Return pooled beliefs clamped to [1e-4, 1 - 1e-4]."""
    return clamp_probability(pooled_belief)


def uncertainty_map(pooled_uncertainty: Tensor) -> Tensor:
    """Return the area means of p·H(p), at most 1, whatever incremental sums have rounded off.

    Unlike the entropy of a pooled belief, this tells ground whose cells are known but differ
    from ground that nobody has seen (not in the paper).
    """
    return pooled_uncertainty.clamp(0, 1)


def no_fly_map(open_share: Tensor) -> Tensor:
    """Return the share of moves that zones and obstacles forbid, any shape.

    1 where no altitude has a move left, and beyond the lattice.

    Args:
        open_share: see `MissionState.open_share`; 0 beyond the lattice.
    """
    return 1 - open_share


def local_entropy_map(pooled_readings: Tensor, cover: Tensor, shift: Tensor) -> Tensor:
    """Return w(f)·H(f) of the latest reading's footprint square f: [E, N, X, Y].

    Beyond the map's edge the square holds 0.5.

    Args:
        pooled_readings: area means of the signs read, [E, N, X, Y].
        cover: shares of their parts of the square that lie on the map, [E, N, X, Y].
        shift: see `belief.reading_shift`, [E, N, 2].
    """
    up, down = shift.unsqueeze(-2).unsqueeze(-2).unbind(-1)
    return weighted_entropy(0.5 + (up - down) / 2 * cover + (up + down) / 2 * pooled_readings)


class FootprintStrips:
    """The footprints of a round on the coarsest grid that their edges cut out of the map.

    N rectangles cut each axis into at most 2N + 1 strips. On that grid their unions are exact
    and tiny, and strip overlaps with the lattice's cells give the area means, so that no
    footprint is ever drawn at full resolution.

    Args:
        footprint: of all UAVs, [E, N].
        map_shape: (R, C).
        shape: (X, Y).
    """

    def __init__(
        self, footprint: Footprint, map_shape: tuple[int, int], shape: tuple[int, int]
    ) -> None:
        self._in_rows, self._row_shares = _strips(
            footprint.row0, footprint.row1, map_shape[0], shape[0]
        )
        self._in_cols, self._col_shares = _strips(
            footprint.col0, footprint.col1, map_shape[1], shape[1]
        )

    def heard_map(self, heard: Tensor) -> Tensor:
        """Return maps that are 1 in the own footprint, 0 in a heard one, else 0.5.

        Args:
            heard: [E, N, N] bool.

        Returns:
            Area means [E, N, X, Y].
        """
        own = self._in_rows.unsqueeze(-1) * self._in_cols.unsqueeze(-2)
        rows = heard.unsqueeze(-1) * self._in_rows.unsqueeze(1)  # [E, N, N, S]
        others = rows.mT @ self._in_cols.unsqueeze(1)
        values = torch.where(own > 0, 1.0, torch.where(others > 0, 0.0, UNSEEN))
        return area_pool(values, self._row_shares.unsqueeze(1), self._col_shares.unsqueeze(1))

    def global_map(self) -> Tensor:
        """Return maps that are 1 in any UAV's footprint, else 0.5: area means [E, X, Y]."""
        seen = self._in_rows.mT @ self._in_cols
        values = torch.where(seen > 0, 1.0, UNSEEN)
        return area_pool(values, self._row_shares, self._col_shares)


def _strips(low: Tensor, high: Tensor, cells: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Cut one axis at all edges: which strips each interval covers, and the strips' shares.

    Returns:
        Membership [E, N, S] float32 and area weights [E, outputs, S] float32.
    """
    border = torch.zeros_like(low[:, :1])
    edges = torch.cat((border, low, high, border + cells), dim=1).sort(dim=1).values
    start, end = edges[:, :-1], edges[:, 1:]
    covers = (start.unsqueeze(1) >= low.unsqueeze(2)) & (end.unsqueeze(1) <= high.unsqueeze(2))
    return covers.to(torch.float32), covered(start, end, cells, outputs)


def heard_planes(
    rows: Tensor, cols: Tensor, levels: Tensor, heard: Tensor, order: Tensor
) -> Tensor:
    """Return a plane for each UAV of the team: [E, N, N, X, Y], those not heard are 0.

    Plane k of UAV i is the share of each lattice cell that UAV `order[i, k]` sees, times its
    altitude level.

    Args:
        rows: shares of the lattice's rows in each footprint, [E, X, N].
        cols: shares of its columns, [E, Y, N].
        levels: altitude levels (z + 1)/Z [E, N].
        heard: who hears whom [E, N, N].
        order: [N, N] int64.
    """
    seen = (levels.unsqueeze(-1) * rows.mT).unsqueeze(-1) * cols.mT.unsqueeze(-2)  # [E, N, X, Y]
    known = heard.gather(2, order.expand_as(heard))
    return seen[:, order] * known[..., None, None]


def global_position_map(
    cells: Tensor, levels: Tensor, shape: tuple[int, int], active: Tensor | None = None
) -> Tensor:
    """Return (z + 1)/Z at each UAV's cell, else 0: [E, X, Y].

    Args:
        cells: flat lattice cells [E, N].
        levels: altitude levels (z + 1)/Z [E, N].
        shape: (X, Y).
        active: UAVs to show, [E, N] bool; all without it.
    """
    order = torch.arange(cells.shape[1], device=cells.device).view(1, 1, -1)
    if active is not None:
        order = order.where(active.unsqueeze(1), -1)
    return paint(cells, levels, order, 0.0, shape).squeeze(1)


def other_actions_map(
    cells: Tensor,
    actions: Tensor,
    num_actions: int,
    shape: tuple[int, int],
    active: Tensor | None = None,
) -> Tensor:
    """Return (a_j + 1)/A at the cell of every other UAV j, else 0: [E, N, X, Y].

    Args:
        cells: flat lattice cells [E, N].
        actions: chosen actions [E, N].
        num_actions: A.
        shape: (X, Y).
        active: UAVs to show, [E, N] bool; all without it.
    """
    ids = torch.arange(cells.shape[1], device=cells.device)
    order = torch.where(ids.unsqueeze(1) == ids, -1, ids).unsqueeze(0)
    if active is not None:
        order = order.where(active.unsqueeze(1), -1)
    return paint(cells, (actions + 1).to(torch.float32) / num_actions, order, 0.0, shape)
