"""What follows a convolution on a GPU: its bias and ReLU, in one Triton kernel.

An operator of `torch.library`, with its gradient; see `mission.kernels.window_operators` for what
all operators keep to. PyTorch adds biases after cuDNN's convolutions, by a kernel of their own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from marl_framework.device import launched_on

BLOCK = 1024  # numbers of a program


@triton.jit
def add_and_cut(
    maps, bias, out, size, CHANNELS: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr
):
    """Write max(map + bias of its channel, 0) for numbers of which INNER lie side by side."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    within = at < size
    added = tl.load(bias + at // INNER % CHANNELS, mask=within, other=0.0).to(tl.float32)
    value = tl.load(maps + at, mask=within, other=0.0).to(tl.float32) + added
    tl.store(out + at, tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=within)


@torch.library.custom_op("marl_framework::bias_relu", mutates_args=())
def bias_relu(maps: Tensor, bias: Tensor) -> Tensor:
    """Return max(maps + bias, 0).

    Args:
        maps: [B, C, X, Y], contiguous or with channels last.
        bias: [C], of any precision.
    """
    last = maps.is_contiguous(memory_format=torch.channels_last)
    if not (last or maps.is_contiguous()):
        raise ValueError("bias_relu needs contiguous maps")
    out = torch.empty_like(maps)
    with launched_on(maps):
        add_and_cut[(triton.cdiv(maps.numel(), BLOCK),)](
            maps,
            bias,
            out,
            maps.numel(),
            CHANNELS=maps.shape[1],
            INNER=1 if last else maps.shape[2] * maps.shape[3],
            BLOCK=BLOCK,
        )
    return out


@bias_relu.register_fake
def _(maps: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(maps)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.dtype = inputs[1].dtype


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    (output,) = ctx.saved_tensors
    passed = torch.ops.aten.threshold_backward(gradient, output, 0)
    return passed, passed.sum((0, 2, 3)).to(ctx.dtype)


bias_relu.register_autograd(_gradients, setup_context=_save)
