"""Fields: the part of the area that a mission maps, from a file or drawn for each mission."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.field import RANDOM
from marl_framework.config.model import Config
from marl_framework.config.named_maps import FIELD_KEY
from marl_framework.kernels.cells import area_pool, lattice_weights
from marl_framework.mission.field_file import read_tables
from marl_framework.mission.fusion import CAUTION_STEPS
from marl_framework.mission.lattice import FieldTables, Lattice
from marl_framework.mission.seeding import DEPLOYMENT
from marl_framework.mission.sensor import cautious_rates, error_rates, reading_odds
from marl_framework.mission.state import MissionState, ResetDraws, assign

_KNOTS = 4  # along x, where the width of a field is drawn
_LEAST = 0.3  # least share of the way from the spine to the border of the area
NUMBERS = 3 + 2 * _KNOTS
"""Number of uniform draws per field."""


def find_tables(config: Config) -> FieldTables | None:
    """Read the field of a file; None if missions map the whole area, or draw a field each."""
    file = config.environment.field_file
    return None if file is None else read_tables(file, config)


def find_fields(config: Config, lattice: Lattice, split: str) -> Fields | None:
    """Return the fields of missions; None if they map the whole area."""
    if config.environment.field == RANDOM and split != DEPLOYMENT:
        return Fields(config, lattice, RandomFields(config, lattice))
    return None if lattice.tables is None else Fields(config, lattice)


class Fields:
    """Starts missions in their fields.

    Attributes:
        random: source of fields that missions draw; None if all have the field of a file.
    """

    def __init__(
        self, config: Config, lattice: Lattice, random: RandomFields | None = None
    ) -> None:
        map_shape, self._prior = config.geometry.map_shape, config.mapping.prior
        _check_prior(config)
        self.random, device = random, lattice.offsets.device
        self._cells = None if lattice.tables is None else lattice.tables.cells.to(device)
        self._area = lattice_weights(map_shape, lattice.shape[:2], device)
        self._number = map_shape[0] * map_shape[1]

    def begin(self, state: MissionState, draws: ResetDraws, mask: Tensor | None) -> None:
        """Set the cells of new missions, see `MissionState.inside`; `mask` as in `reset`."""
        if self._cells is not None:
            cells = self._cells.expand_as(state.inside)
        else:
            assert self.random is not None
            assert draws.field is not None
            cells = self.random.cells(draws.field)
        assign(state.inside, cells, mask)
        assign(state.counted, cells.flatten(1).sum(1).double(), mask)

    def clear(self, state: MissionState, windows: Tensor) -> None:
        """Set `readings` outside the field to -1, as the simulated camera reads them.

        `windows` are the flat map indices of the windows' cells, [E, N, K_x·K_y].
        """
        inside = state.inside.flatten(1).gather(1, windows.flatten(1)).view_as(state.readings)
        state.readings.masked_fill_(~inside & (state.readings > 0), -1)

    def blank(self, state: MissionState, values: dict[str, float], mask: Tensor | None) -> None:
        """Set beliefs to the prior, and their averages and sums.

        `values` are averages and sums for the whole area, by name.
        """
        prior = self._prior * state.inside
        assign(state.beliefs, prior.unsqueeze(1).expand_as(state.beliefs), mask)
        assign(state.global_belief, prior, mask)
        share = area_pool(state.inside.float(), *self._area)
        for name, value in values.items():
            target, part = getattr(state, name), state.counted / self._number
            if name.startswith("pooled"):
                part = share.unsqueeze(1) if target.dim() == 4 else share
            assign(target, (value * part).expand_as(target), mask)


def _check_prior(config: Config) -> None:
    """Raise a ConfigError if readings of -1 do not lower beliefs, or those outside would rise."""
    least = 1 / CAUTION_STEPS if config.sensor.model.adapt else 1.0  # learned caution
    rates = cautious_rates(error_rates(config), config.mapping.caution * least)
    prior = config.mapping.prior
    if float(reading_odds(rates)[:, 1].max()) * (1 - prior) / prior > 1:
        raise ConfigError(
            f"{FIELD_KEY}: not supported with mapping.prior {prior:g}, whose odds outweigh a "
            "reading; use a prior of 0.5"
        )


class RandomFields:
    """Draws fields of `environment.field: random`.

    A field reaches from its first to its last column of lattice positions. Its borders below and
    above are lines from column to column, on both sides of a row of positions, the spine. So UAVs
    can fly between all positions of a field, and a move lies in the field if its ends do. Borders
    do not bend inwards from the line between their ends. Raises ConfigError if a field may have
    fewer positions than there are UAVs.
    """

    def __init__(self, config: Config, lattice: Lattice) -> None:
        area, device = config.environment, lattice.offsets.device
        self._side_y, self._spacing = area.y_dim, lattice.spacing
        self._lattice, self._table = lattice, lattice.table()
        columns, rows, _ = self._shape = lattice.shape
        most = config.missions.most_agents
        least = (columns - 2 * (columns // 4)) * max(1, int(_LEAST * (rows - 1)))
        if most > least:
            raise ConfigError(
                f"experiment.missions.n_agents: {most} UAVs may not fit into a random field, which "
                f"has {least} positions or more; raise environment.x_dim and y_dim, or lower it"
            )
        cells = zip(config.geometry.map_shape, config.geometry.cell_size, strict=True)
        self._centres = [
            (torch.arange(number, device=device) + 0.5) * (size / self._spacing)
            for number, size in cells
        ]

    def positions(self, draws: Tensor) -> Tensor:
        """Return the lattice positions in each field, [E, X, Y] bool, for draws [E, NUMBERS]."""
        columns, rows, _ = self._shape
        places = (torch.arange(n, device=draws.device).float() for n in (columns, rows))
        return self._inside(draws, *places)

    def cells(self, draws: Tensor) -> Tensor:
        """Return the map cells whose centres lie in each field, [E, R, C] bool."""
        return self._inside(draws, *self._centres)

    def moves(self, draws: Tensor) -> Tensor:
        """Return the moves between positions of each field, [E, X, Y, Z, A] bool."""
        inside = self.positions(draws).unsqueeze(-1).expand(-1, *self._shape).flatten(1)
        places = torch.cartesian_prod(*(torch.arange(n, device=draws.device) for n in self._shape))
        goals = self._lattice.places(self._lattice.nearest_destinations(places))
        ends = inside[:, goals].view(len(draws), *self._shape, -1)
        return self._table & ends & inside.view(len(draws), *self._shape, 1)

    def _inside(self, draws: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return which points lie in each field; coordinates are in units of the spacing."""
        columns, rows, _ = self._shape
        ends, (below, above) = draws[:, :3], draws[:, 3:].unflatten(1, (2, _KNOTS)).unbind(1)
        cut = columns // 4 + 1
        first, margin = (ends[:, :2] * cut).long().unsqueeze(-1).unbind(1)
        last = columns - 1 - margin
        spine = rows // 4 + (ends[:, 2:] * (rows - 2 * (rows // 4))).long()
        column = torch.arange(columns, device=draws.device)
        share = ((column - first) / (last - first)).clamp(0, 1)
        along = torch.linspace(0, 1, _KNOTS, device=draws.device)
        above, below = (
            _LEAST + (1 - _LEAST) * knots.maximum(knots[:, :1].lerp(knots[:, -1:], along))
            for knots in (above, below)
        )
        high = spine + _lines(above, share) * (self._side_y / self._spacing - spine)
        low = spine - _lines(below, share) * spine
        share = (x / (columns - 1)).clamp(max=1).expand(len(draws), -1)
        low, high = (_lines(border, share).unsqueeze(-1) for border in (low, high))
        in_columns = (x >= first) & ((x <= last) | (margin == 0))
        return in_columns.unsqueeze(-1) & (y >= low) & (y <= high)


def _lines(knots: Tensor, share: Tensor) -> Tensor:
    """Interpolate evenly spaced `knots` [E, K] linearly at shares [E, P] of their extent."""
    at = share * (knots.shape[1] - 1)
    left = at.long().clamp(max=knots.shape[1] - 2)
    start, end = knots.gather(1, left), knots.gather(1, left + 1)
    return start + (at - left) * (end - start)
