"""Kernel operator for layers of networks: a convolution, its bias and ReLU.

Maps are [B, C, X, Y] in half precision, with channels last in memory on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from marl_framework.kernels.versions import block, check_contiguous, launch

_UNPADDED = [1, 1], [0, 0], [1, 1]  # stride, padding and dilation
_TILE = 4096  # numbers of a program


@torch.library.custom_op("marl_framework::convolve", mutates_args=())
def convolve(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return max(0, maps * weight + bias) without padding.

    On a GPU bias and ReLU take one pass over the outputs, in place; PyTorch's operators take two.
    """
    if not maps.is_cuda:
        return conv2d(maps, weight, bias).relu()
    outputs = conv2d(maps, weight).contiguous(memory_format=torch.channels_last)
    rectify(outputs, bias)
    return outputs


def rectify(outputs: Tensor, bias: Tensor) -> None:
    """Replace outputs [B, C, X, Y], channels last, by max(0, outputs + bias), with bias [C]."""
    rows = outputs.permute(0, 2, 3, 1)
    check_contiguous(rows, bias)
    width, number = len(bias), rows[..., 0].numel()
    height = max(1, _TILE // block(width))
    sizes = {"C": width, "WIDE": block(width), "HIGH": height}
    launch("layers.rectify", (-(-number // height),), rows, bias, number, **sizes, num_warps=4)


@convolve.register_fake
def _(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return conv2d(maps, weight, bias)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2], output)


def _convolve_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    maps, weight, outputs = ctx.saved_tensors
    gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
    wanted = ctx.needs_input_grad[0], True, True
    options = [len(weight)], *_UNPADDED, False, [0, 0], 1, wanted
    gradients: tuple[Tensor | None, ...]
    gradients = torch.ops.aten.convolution_backward(gradient, maps, weight, *options)
    return gradients


convolve.register_autograd(_convolve_backward, setup_context=_keep)
