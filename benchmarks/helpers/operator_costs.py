"""Cost of operators on a GPU: number of kernels and moved bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from marl_framework.kernels import layers  # noqa: F401  # registers `convolve`

aten = torch.ops.aten

OperatorCost = tuple[int, float]
"""Number of kernels, and bytes that the kernels move."""


# Operators that do not start exactly one kernel, according to ATen's CUDA sources.
_KERNELS = {
    aten.sort.default: 2,
    aten.sort.stable: 3,
    aten.topk.default: 2,
    aten.randperm.default: 7,
    aten.randperm.generator: 7,
    aten._foreach_norm.Scalar: 3,
    aten._fused_adam_.default: 2,
    aten._fused_adam_.tensor_lr: 2,
    aten._reshape_alias.default: 0,
    aten._unsafe_view.default: 0,
    aten.empty.memory_format: 0,
    aten.empty_like.default: 0,
    aten.empty_strided.default: 0,
    aten.lift_fresh.default: 0,
    aten.new_empty.default: 0,
}


def operator_cost(func: Any, args: Any, before: list[Tensor], after: list[Any]) -> OperatorCost:
    """Return the cost of an operator, if each input is read once and each output written once.

    Args:
        func: operator.
        args: arguments of the operator.
        before: tensors among the arguments.
        after: tensors that the operator returns.
    """
    if any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
        return 0, 0  # a view
    kernels = _KERNELS.get(func, 1)
    if kernels == 0:
        return 0, 0
    moved = _count_bytes(func, args, before, after)
    if func not in CONVOLUTIONS:
        return kernels, moved
    kernels, additional = CONVOLUTIONS[func](args, after)
    return kernels, moved + additional


def _convolution_cost(args: Any, after: list[Any]) -> OperatorCost:
    """Return a convolution's kernels, and the moved bytes in addition to input and output.

    cuDNN computes with channels last, and reorders other maps before and after. PyTorch adds the
    bias in a separate kernel.
    """
    maps, _, bias = args[:3]
    reordered = [tensor for tensor in (maps, *after) if not has_channels_last(tensor)]
    biased = [] if bias is None else after
    return 1 + len(reordered) + len(biased), 2 * sum(map(size_of, reordered + biased))


def _convolution_backward_cost(args: Any, after: list[Any]) -> OperatorCost:
    """Return the same for a convolution's gradients; each kernel reads the output's gradient."""
    gradient, maps, weights = args[:3]
    of_maps, of_weights, of_bias = args[-1]
    kernels = of_maps + of_weights + of_bias
    moved = (kernels - 1) * size_of(gradient)
    reordered = []
    if not has_channels_last(maps):  # the gradient, and input and result of each kernel
        reordered = [gradient, *(of_maps + of_weights) * [maps, weights]]
    return kernels + len(reordered), 2 * sum(map(size_of, reordered)) + moved


def has_channels_last(maps: Tensor) -> bool:
    """Return whether a tensor has four dimensions and channels last."""
    return maps.dim() == 4 and maps.is_contiguous(memory_format=torch.channels_last)


def with_channels_last(value: Any) -> Any:
    """Return tensors with four dimensions in channels-last layout, other values unchanged."""
    is_maps = isinstance(value, Tensor) and value.dim() == 4
    return value.contiguous(memory_format=torch.channels_last) if is_maps else value


CONVOLUTIONS: dict[Any, Callable[[Any, list[Any]], OperatorCost]] = {
    aten.convolution.default: _convolution_cost,
    aten.convolution_backward.default: _convolution_backward_cost,
    torch.ops.marl_framework.convolve.default: _convolution_cost,
}


def size_of(tensor: Tensor) -> int:
    """Return a tensor's size [bytes]; expanded elements count once."""
    number = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        number *= size if stride else min(size, 1)
    return number * tensor.element_size()


def _count_bytes(func: Any, args: Any, before: list[Tensor], after: list[Tensor]) -> int:
    """Count the bytes that an operator reads and writes."""
    packet = func.overloadpacket
    if packet is aten.gather:
        return size_of(args[2]) + 2 * size_of(after[0])
    if packet in (aten.scatter_, aten.scatter):
        index, source = args[2], args[3]
        read = size_of(source) if isinstance(source, Tensor) else 0
        return size_of(index) + read + index.numel() * args[0].element_size()
    if packet is aten.index:
        return 2 * size_of(after[0]) + sum(map(size_of, tensors_in(args[1])))
    if packet is aten.copy_:
        return size_of(args[0]) + size_of(args[1])
    if packet in (aten.fill_, aten.zero_, aten.random_, aten.uniform_, aten.normal_):
        return size_of(args[0])
    written = [
        value
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    moved = sum(map(size_of, before)) + sum(map(size_of, tensors_in(written)))
    if not any(r.alias_info is not None for r in func._schema.returns):
        moved += sum(map(size_of, after))
    return moved


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
