"""Turned transitions for updates on a GPU, as an operator of `torch.library`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from marl_framework.device import launched_on
from marl_framework.mission.kernels.window_operators import as_bytes
from marl_framework.observations import triton_symmetry
from marl_framework.observations.symmetry import Symmetries

BLOCK = 128  # cells that a program takes


@torch.library.custom_op("marl_framework::take_turned", mutates_args=())
def take_turned(
    index: Tensor,
    which: Tensor,
    cells: Tensor,
    turned_actions: Tensor,
    sources: Tensor,
    codes: Tensor,
    observations: Tensor,
    critic_maps: Tensor,
    actions: Tensor,
    masks: Tensor,
    probabilities: Tensor,
    targets: Tensor,
    others: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Take transitions as symmetries show them; `triton_symmetry.take` has the shapes.

    Returns:
        Observations and critic maps in one tensor [B, C_c, X, Y], actions, masks, probabilities
        and targets.
    """
    tables = (cells, turned_actions, sources, codes)
    tensors = (*tables, observations, critic_maps, actions, masks, probabilities, targets)
    if not all(tensor.is_contiguous() for tensor in (index, which, *tensors)):
        raise ValueError("the kernel of symmetries needs contiguous tensors")
    out = _empty(index, observations, critic_maps, masks, targets)
    size = cells.shape[1]
    with launched_on(index):
        triton_symmetry.take[(len(index), triton.cdiv(size, BLOCK))](
            index,
            which,
            *map(as_bytes, (*tensors, *out)),
            CELLS=size,
            SEEN=observations.shape[1],
            OWN=critic_maps.shape[1],
            OTHERS=others,
            A=masks.shape[1],
            BLOCK=BLOCK,
            BLOCK_A=triton.next_power_of_2(masks.shape[1]),
            num_warps=1,
        )
    return out


@take_turned.register_fake
def _(index: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty(index, arguments[5], arguments[6], arguments[8], arguments[10])


def _empty(
    index: Tensor, observations: Tensor, critic_maps: Tensor, masks: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return memory for a batch."""
    batch, channels = len(index), observations.shape[1] + critic_maps.shape[1]
    policy = (batch, masks.shape[1])
    return (
        observations.new_empty(batch, channels, *observations.shape[2:]),
        index.new_empty(batch),
        masks.new_empty(policy),
        targets.new_empty(policy),
        targets.new_empty(batch),
    )


class TritonSymmetries(Symmetries):
    """The same with one kernel for a batch."""

    def take(self, batch: Any, index: Tensor, which: Tensor) -> Any:
        """See `Symmetries.take`."""
        maps, actions, masks, probabilities, targets = take_turned(
            index,
            which,
            self._cells,
            self._actions,
            self._sources,
            self._codes,
            batch.observations,
            batch.critic_maps,
            batch.actions,
            batch.masks,
            batch.old_probabilities,
            batch.targets,
            -1 if self._others is None else self._others,
        )
        seen = batch.observations.shape[1]
        turned = {
            "observations": maps[:, :seen],
            "critic_maps": maps[:, seen:],
            "actions": actions,
            "masks": masks,
            "old_probabilities": probabilities,
            "targets": targets,
            "maps": maps,
        }
        others = {name: field for name, field in batch.tensors().items() if name not in turned}
        taken = {name: field[index] for name, field in others.items()}
        if "teacher" in taken:
            taken["teacher"] = self.policies(taken["teacher"], which)
        return replace(batch, **turned, **taken)
