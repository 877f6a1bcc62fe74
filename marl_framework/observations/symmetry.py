"""Symmetries of the square: a mission flipped or turned is a mission."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.mission.lattice import action_offsets

OTHER_ACTIONS = "other_actions"


class Symmetries:
    """Shows transitions as they would have been on a flipped or turned area.

    There are eight of them where a quarter turn makes a mission of a mission, else four. Rewards
    and values stay as they are, so they must not depend on directions; maps, actions, masks and
    policy go along. What the turned team would have done with which probability is what the team
    did: the policy that flew goes along too, so updates weigh each action with the probability
    that it was really taken with.

    Args:
        config: the mission; its lattice has a middle cell.
        device: where transitions are.

    Raises:
        ConfigError: a flipped mission would not be a mission.
    """

    def __init__(self, config: Config, device: torch.device | str) -> None:
        _check(config)
        x, y, _ = config.geometry.lattice_shape
        steps = action_offsets(config.experiment.constraints.num_actions)
        axes = [torch.eye(2, dtype=torch.int64)]
        if config.geometry.quarter_turns:
            axes.append(axes[0].flip(0))  # x and y exchanged
        flips = [torch.diag(torch.tensor(signs)) for signs in product((1, -1), repeat=2)]
        planar = [axis @ flip for axis in axes for flip in flips]
        middle = torch.tensor((x // 2, y // 2))
        at = torch.cartesian_prod(torch.arange(x), torch.arange(y)) - middle
        moves = torch.tensor(steps)
        cells, actions = [], []
        for turn in planar:
            source = at @ turn + middle  # turn's inverse is its transpose
            cells.append(source[:, 0] * y + source[:, 1])
            turned = torch.cat((moves[:, :2] @ turn.T, moves[:, 2:]), dim=1)
            actions.append((turned.unsqueeze(1) == moves).all(-1).int().argmax(1))
        self._cells = torch.stack(cells).to(device)
        self._actions = torch.stack(actions).to(device)
        self._sources = self._actions.argsort(dim=1)
        names = config.observation.critic_only_channels
        self._others = names.index(OTHER_ACTIONS) if OTHER_ACTIONS in names else None
        nobody = self._actions.new_zeros(len(planar), 1)
        self._codes = torch.cat((nobody, self._actions + 1), dim=1).float() / len(steps)

    def __len__(self) -> int:
        return len(self._cells)

    def draw(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Draw one symmetry for each of `num` transitions, [num] int64."""
        return torch.randint(len(self), (num,), generator=generator, device=self._cells.device)

    def take(self, batch: Any, index: Tensor, which: Tensor) -> Any:
        """Return the transitions `index` [B] of more, as symmetry `which` [B] shows them."""
        return self.apply(batch[index], which)

    def apply(self, batch: Any, which: Tensor) -> Any:
        """Return transitions as symmetry `which` [B] shows them.

        Args:
            batch: dataclass with `observations`, `critic_maps`, `actions`, `masks`,
                `old_probabilities` and `teacher`, which may be None
                (`algorithms.batch.Transitions`).
            which: [B] int64.
        """
        critic_maps = self.maps(batch.critic_maps, which)
        if self._others is not None:  # its values are actions
            others = critic_maps[:, self._others].flatten(1)
            chosen = (others * self._actions.shape[1]).round().long()
            codes = self._codes[which].gather(1, chosen)
            critic_maps[:, self._others] = codes.view(-1, *critic_maps.shape[2:])
        return replace(
            batch,
            observations=self.maps(batch.observations, which),
            critic_maps=critic_maps,
            actions=self._actions[which, batch.actions],
            masks=self.policies(batch.masks, which),
            old_probabilities=self.policies(batch.old_probabilities, which),
            teacher=None if batch.teacher is None else self.policies(batch.teacher, which),
        )

    def policies(self, values: Tensor, which: Tensor) -> Tensor:
        """Return what each action has, [B, A], as symmetry `which` [B] shows it."""
        return values.gather(1, self._sources[which])

    def maps(self, maps: Tensor, which: Tensor) -> Tensor:
        """Return maps [B, C, X, Y] as symmetry `which` [B] shows them."""
        cells = self._cells[which].unsqueeze(1).expand(-1, maps.shape[1], -1)
        return maps.flatten(2).gather(2, cells).view_as(maps)


def _check(config: Config) -> None:
    area, spacing = config.environment, config.experiment.constraints.spacing
    x, y, _ = config.geometry.lattice_shape
    ends = ((x - 1) * spacing, area.x_dim), ((y - 1) * spacing, area.y_dim)
    if not (x % 2 and y % 2 and all(math.isclose(last, side) for last, side in ends)):
        raise ConfigError(
            f"learning.symmetries: needs a lattice with a middle position that ends at the area's "
            f"edges, not {x} x {y} positions {spacing:g} m apart on {area.x_dim:g} x "
            f"{area.y_dim:g} m; make environment.x_dim and y_dim even multiples of "
            "experiment.constraints.spacing, or set learning.symmetries=false"
        )
