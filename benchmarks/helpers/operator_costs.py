"""What operators ask of a GPU: how many kernels they start, and the bytes that these move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

OperatorCost = tuple[int, float]
"""Kernels that an operator starts, and the bytes it moves."""


# Kernels of the operators that start more or fewer than one, from reading ATen's CUDA sources.
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
    """Return what an operator costs; a kernel reads each input and writes each output once.

    Args:
        func: the operator.
        args: what it gets.
        before: the tensors among that.
        after: the tensors that it returns.
    """
    if any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
        return 0, 0  # a view
    kernels = _KERNELS.get(func, 1)
    if kernels == 0:
        return 0, 0
    moved = _moved(func, args, before, after)
    if func not in CONVOLUTIONS:
        return kernels, moved
    kernels, more = CONVOLUTIONS[func](args, after)
    return kernels, moved + more


def _convolution(args: Any, after: list[Any]) -> OperatorCost:
    """Return the kernels of a convolution, and what they move beside its input and output once.

    cuDNN computes with channels last, and changes the order of maps that come otherwise, and back.
    PyTorch adds the bias by a kernel of its own.
    """
    maps, _, bias = args[:3]
    turned = [each for each in (maps, *after) if not has_channels_last(each)]
    biased = [] if bias is None else after
    return 1 + len(turned) + len(biased), 2 * sum(map(size_of, turned + biased))


def _convolution_backward(args: Any, after: list[Any]) -> OperatorCost:
    """Return the same of the gradients of a convolution; each reads that of the output anew."""
    gradient, maps, weights = args[:3]
    of_maps, of_weights, of_bias = args[-1]
    kernels = of_maps + of_weights + of_bias
    turned = []
    if not has_channels_last(maps):  # the gradient; what else is needed, and what comes of it
        turned = [gradient, *(of_maps + of_weights) * [maps, weights]]
    return kernels + len(turned), 2 * sum(map(size_of, turned)) + (kernels - 1) * size_of(gradient)


def has_channels_last(maps: Tensor) -> bool:
    """Return whether a tensor is maps with channels last."""
    return maps.dim() == 4 and maps.is_contiguous(memory_format=torch.channels_last)


def with_channels_last(value: Any) -> Any:
    """Return maps with channels last, and anything else as it is."""
    is_maps = isinstance(value, Tensor) and value.dim() == 4
    return value.contiguous(memory_format=torch.channels_last) if is_maps else value


CONVOLUTIONS: dict[Any, Callable[[Any, list[Any]], OperatorCost]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor, what is expanded once."""
    number = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        number *= size if stride else min(size, 1)
    return number * tensor.element_size()


def _moved(func: Any, args: Any, before: list[Tensor], after: list[Tensor]) -> int:
    """Return the bytes that an operator reads and writes."""
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
    """Return the tensors of nested containers."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
