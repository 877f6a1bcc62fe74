"""A convolution with its bias and ReLU in one Triton kernel, as an operator of `torch.library`.

For the layers of a network that memory limits, not arithmetic; see `triton_bias` for the others.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from marl_framework.device import launched_on
from marl_framework.networks.triton_bias import bias_relu

MOST_CHANNELS = 128  # that a program makes
STEPS = ("OF_MAP", "OF_CHANNEL", "OF_X", "OF_Y")
OPTIONS = {"BLOCK_K": 32, "num_stages": 3}  # products that it adds up at once


@triton.jit
def convolve(
    maps,
    weights,
    bias,
    before,
    out,
    rows,
    OF_MAP: tl.constexpr,
    OF_CHANNEL: tl.constexpr,
    OF_X: tl.constexpr,
    OF_Y: tl.constexpr,
    C: tl.constexpr,
    KX: tl.constexpr,
    KY: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    N: tl.constexpr,
    BEFORE: tl.constexpr,
    FAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write max(convolution + bias, 0): a product of matrices whose left one is gathered.

    A row is one place of one output, a column one of its channels. Products run over the channels
    of the maps and the cells of a filter, in the order of memory, so that threads side by side
    read numbers side by side.

    Tensors:
        maps: [B, C, …], a step along its axes being OF_MAP, OF_CHANNEL, OF_X and OF_Y numbers.
        weights: [N, C, KX, KY]; [N, KX, KY, C] where OF_CHANNEL is 1.
        bias: [N].
        before: bias of the maps, [C], where there is one BEFORE; the maps are then cut at 0, too.
        out: [B, X, Y, N], `rows` = B·X·Y, written.
    """
    tiles: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    row = tl.program_id(0) // tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    # Offsets from the first map of the program fit into 32 bits.
    place, first = row % (X * Y), tl.program_id(0) // tiles * BLOCK_M // (X * Y)
    corner = (row // (X * Y) - first) * OF_MAP + place // Y * OF_X + place % Y * OF_Y
    maps += first.to(tl.int64) * OF_MAP
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k0 in range(0, KX * KY * C, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if OF_CHANNEL == 1:
            cell, channel = k // C, k % C
        else:
            cell, channel = k % (KX * KY), k // (KX * KY)
        known = k < KX * KY * C
        at = cell // KY * OF_X + cell % KY * OF_Y + channel * OF_CHANNEL
        seen = tl.load(
            maps + (corner[:, None] + at[None, :]),
            mask=(row < rows)[:, None] & known[None, :],
            other=0.0,
        )
        if BEFORE:
            added = tl.load(before + channel, mask=known, other=0.0).to(tl.float32)
            seen = seen.to(tl.float32) + added[None, :]
            seen = tl.maximum(seen, 0.0, propagate_nan=tl.PropagateNan.ALL)
        weight = tl.load(
            weights + (column[None, :] * (KX * KY * C) + k[:, None]),
            mask=known[:, None] & (column < N)[None, :],
            other=0.0,
        )
        seen = seen.to(weights.dtype.element_ty)
        if FAST:
            total = tl.dot(seen, weight, total)
        else:  # the interpreter multiplies no bfloat16; the products are the same
            total = tl.dot(
                seen.to(tl.float32), weight.to(tl.float32), total, input_precision="ieee"
            )
    total += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + (row.to(tl.int64)[:, None] * N + column[None, :]),
        tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL),
        mask=(row < rows)[:, None] & (column < N)[None, :],
    )


@torch.library.custom_op("marl_framework::convolution_relu", mutates_args=())
def convolution_relu(maps: Tensor, weights: Tensor, bias: Tensor, before: Tensor | None) -> Tensor:
    """Return the ReLU of a convolution without padding, in the precision of the weights.

    Args:
        maps: [B, C, X, Y], of any precision and order of memory.
        weights: [C', C, K_x, K_y] of half precision, with channels last where the maps have them
            last, else contiguous.
        bias: [C'].
        before: [C]; if given, the maps are max(maps + before, 0) instead, as `bias_relu` has them.

    Returns:
        [B, C', X - K_x + 1, Y - K_y + 1], with channels last.
    """
    order = torch.channels_last if maps.stride(1) == 1 else torch.contiguous_format
    if not weights.is_contiguous(memory_format=order):
        raise ValueError("convolution_relu needs weights in the order of the maps")
    out = _empty(maps, weights)
    batch, outputs, x, y = out.shape
    rows = batch * x * y
    # Small tiles where there are few rows, that all of a GPU has work.
    block, warps = (128, 16) if x * y > 1 else (64, 8)
    wide = min(MOST_CHANNELS, max(16, triton.next_power_of_2(outputs)))
    with launched_on(maps):
        convolve[(triton.cdiv(rows, block) * triton.cdiv(outputs, wide),)](
            maps,
            weights,
            bias,
            bias if before is None else before,
            out,
            rows,
            **dict(zip(STEPS, maps.stride(), strict=True)),
            C=weights.shape[1],
            KX=weights.shape[2],
            KY=weights.shape[3],
            X=x,
            Y=y,
            N=outputs,
            BEFORE=before is not None,
            FAST=maps.is_cuda,
            BLOCK_M=block,
            BLOCK_N=wide,
            num_warps=warps,
            **OPTIONS,
        )
    return out


@convolution_relu.register_fake
def _(maps: Tensor, weights: Tensor, bias: Tensor, before: Tensor | None) -> Tensor:
    return _empty(maps, weights)


def _empty(maps: Tensor, weights: Tensor) -> Tensor:
    (batch, _, x, y), (outputs, _, kernel_x, kernel_y) = maps.shape, weights.shape
    size = (batch, outputs, x - kernel_x + 1, y - kernel_y + 1)
    return torch.empty(
        size, dtype=weights.dtype, device=weights.device, memory_format=torch.channels_last
    )


@register_flop_formula(torch.ops.marl_framework.convolution_relu)
def _flops(maps: tuple[int, ...], weights: tuple[int, ...], *_: Any, **given: Any) -> int:
    return 2 * math.prod(given["out_shape"]) * math.prod(weights[1:])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    maps, weights, bias, before = inputs
    ctx.save_for_backward(maps, weights, before, output)
    ctx.dtype = bias.dtype


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    maps, weights, before, output = ctx.saved_tensors
    seen = maps.to(weights.dtype, memory_format=torch.channels_last)
    if before is not None:
        seen = bias_relu(seen, before)
    passed = torch.ops.aten.threshold_backward(gradient, output, 0)
    needs_maps = ctx.needs_input_grad[0] or before is not None
    one, none = [1, 1], [0, 0]
    of_maps, of_weights, _ = torch.ops.aten.convolution_backward(
        passed, seen, weights, None, one, none, one, False, none, 1, [needs_maps, True, False]
    )
    of_bias = passed.sum((0, 2, 3)).to(ctx.dtype)
    if before is None:
        return of_maps, of_weights, of_bias, None
    of_maps = torch.ops.aten.threshold_backward(of_maps, seen, 0)
    return of_maps, of_weights, of_bias, of_maps.sum((0, 2, 3)).to(before.dtype)


convolution_relu.register_autograd(_gradients, setup_context=_save)
