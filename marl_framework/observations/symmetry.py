"""Data augmentation by symmetries of the square: flips and quarter turns."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.device import uses_triton
from marl_framework.kernels.maps import Flown, Tables, Turned, take_turned
from marl_framework.mission.lattice import action_offsets
from marl_framework.observations.channels import CHANNELS, Turns


class Symmetries:
    """Flips and rotations of the area, applied to transitions.

    There are eight symmetries if quarter turns are valid, else four. They transform maps, actions,
    masks and policies; rewards and values do not change.

    Args:
        config: configuration of the missions; its lattice must have a middle cell.
        device: device of the transitions.
        in_kernel: whether to use the Triton kernel.

    Raises:
        ConfigError: the lattice is not symmetric.
    """

    def __init__(self, config: Config, device: torch.device | str, in_kernel: bool = False) -> None:
        area, spacing = config.environment, config.experiment.constraints.spacing
        x, y, _ = config.geometry.lattice_shape
        ends = ((x - 1) * spacing, area.x_dim), ((y - 1) * spacing, area.y_dim)
        has_middle = config.observation.window is not None or (x % 2 and y % 2)
        if not (has_middle and all(math.isclose(last, side) for last, side in ends)):
            advice = "set learning.symmetries=false"
            if area.field_file is None:  # the field of a file replaces the sides
                sides = "make environment.x_dim and y_dim even multiples of "
                advice = f"{sides}experiment.constraints.spacing, or {advice}"
            raise ConfigError(
                "learning.symmetries: requires a lattice with a middle position that ends at the "
                f"area's edges; {x} x {y} positions at a spacing of {spacing:g} m do not fit "
                f"{area.x_dim:g} x {area.y_dim:g} m; {advice}"
            )
        self._in_kernel = in_kernel
        steps = action_offsets(config.experiment.constraints.num_actions)
        axes = [torch.eye(2, dtype=torch.int64)]
        x, y = config.network_sizes.shape
        if x == y and config.geometry.square_footprints:
            axes.append(axes[0].flip(0))  # exchanges x and y
        flips = [torch.diag(torch.tensor(signs)) for signs in product((1, -1), repeat=2)]
        planar = [axis @ flip for axis in axes for flip in flips]
        middle = torch.tensor((x // 2, y // 2))
        at = torch.cartesian_prod(torch.arange(x), torch.arange(y)) - middle
        moves = torch.tensor(steps)
        cells, actions = [], []
        for turn in planar:
            source = at @ turn + middle  # the inverse of `turn` is its transpose
            cells.append(source[:, 0] * y + source[:, 1])
            turned = torch.cat((moves[:, :2] @ turn.T, moves[:, 2:]), dim=1)
            actions.append((turned.unsqueeze(1) == moves).all(-1).int().argmax(1))
        new_actions = torch.stack(actions)
        codes = torch.cat((torch.zeros(len(planar), 1), new_actions + 1.0), dim=1) / len(steps)
        tables = torch.stack(cells), new_actions, new_actions.argsort(dim=1), codes
        self._tables = Tables(*(table.to(device) for table in tables))
        turns = [CHANNELS[name].turns for name in config.observation.critic_only_channels]
        if turns.count(Turns.ACTIONS) > 1:
            raise ConfigError(
                "observation.other_actions and centred_other_actions: learning.symmetries supports "
                "only one of them; switch one off"
            )
        self._map_of_actions = turns.index(Turns.ACTIONS) if Turns.ACTIONS in turns else -1

    def __len__(self) -> int:
        return len(self._tables.cells)

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw a random symmetry for each of `num` transitions, [num] int64."""
        device = self._tables.cells.device
        return torch.randint(len(self), (num,), generator=generator, device=device)

    def take(self, batch: Any, index: Tensor, which: Tensor) -> Any:
        """Return transitions `index` [B] of a batch, transformed by symmetries `which` [B]."""
        if not self._in_kernel:
            return self.apply(batch[index], which)
        flown, tables = [getattr(batch, name) for name in Flown._fields], list(self._tables)
        turned = Turned(*take_turned(index, which, tables, flown, self._map_of_actions))
        first = batch.observations.shape[1]
        fields = turned._asdict()
        fields |= {"observations": turned.maps[:, :first], "critic_maps": turned.maps[:, first:]}
        others = {k: field[index] for k, field in batch.tensors().items() if k not in fields}
        if "teacher" in others:
            others["teacher"] = self.policies(others["teacher"], which)
        return replace(batch, **fields, **others)

    def apply(self, batch: Any, which: Tensor) -> Any:
        """Transform all `algorithms.batch.Transitions` by symmetries `which` [B] int64."""
        critic_maps = self.maps(batch.critic_maps, which)
        at, tables = self._map_of_actions, self._tables
        if at >= 0:
            others = critic_maps[:, at].flatten(1)
            chosen = (others * tables.actions.shape[1]).round().long()
            codes = tables.codes[which].gather(1, chosen)
            critic_maps[:, at] = codes.view(-1, *critic_maps.shape[2:])
        return replace(
            batch,
            observations=self.maps(batch.observations, which),
            critic_maps=critic_maps,
            actions=tables.actions[which, batch.actions],
            masks=self.policies(batch.masks, which),
            old_probabilities=self.policies(batch.old_probabilities, which),
            teacher=None if batch.teacher is None else self.policies(batch.teacher, which),
        )

    def policies(self, values: Tensor, which: Tensor) -> Tensor:
        """Transform values of actions [B, A] by symmetries `which` [B]."""
        return values.gather(1, self._tables.sources[which])

    def maps(self, maps: Tensor, which: Tensor) -> Tensor:
        """Transform maps [B, C, X, Y] by symmetries `which` [B]."""
        cells = self._tables.cells[which].unsqueeze(1).expand(-1, maps.shape[1], -1)
        return maps.flatten(2).gather(2, cells).view_as(maps)


def make_symmetries(config: Config, device: torch.device | str) -> Symmetries | None:
    """Return the symmetries of a training run; None if `learning.symmetries` is off.

    Raises:
        ConfigError: the lattice is not symmetric.
    """
    if not config.learning.symmetries:
        return None
    return Symmetries(config, device, uses_triton(config.compute, torch.device(device)))
