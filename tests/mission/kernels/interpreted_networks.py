"""The Triton kernels of networks, interpreted on the CPU, against plain operators.

Not collected by itself: `test_triton_team.py` runs this file with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import os
from copy import deepcopy

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import layers
from marl_framework.config.learning import NetworkConfig
from marl_framework.exporting.portable import PortableActor
from marl_framework.networks import convolutional
from marl_framework.networks.convolutional import ConvolutionReLU, hidden_layers, place
from marl_framework.networks.registry import make_actor
from marl_framework.networks.triton_bias import bias_relu
from marl_framework.networks.triton_convolution import MOST_CHANNELS, convolution_relu
from tests.small import small_config

assert os.environ.get("TRITON_INTERPRET") == "1"


ORDERS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7, 4), (2, 8, 1, 1), (9, 40, 3, 3)])
def test_biases_and_relus_are_those_of_plain_operators(
    shape: tuple[int, ...], precision: torch.dtype, order: torch.memory_format
) -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(shape, generator=generator).to(precision, memory_format=order)
    maps[0, 1, 0, 0] = float("nan")  # which ReLU keeps
    bias = torch.randn(shape[1], generator=generator).to(precision)
    coming = torch.randn(shape, generator=generator).to(precision)
    found = []
    for function in (bias_relu, lambda a, b: torch.relu(a + b[:, None, None])):
        a, b = maps.clone().requires_grad_(), bias.clone().requires_grad_()
        out = function(a, b)
        assert out.is_contiguous(memory_format=order)
        out.backward(coming)
        found.append((out, a.grad, b.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def plain_convolution(maps: Tensor, weights: Tensor, bias: Tensor, before: Tensor | None) -> Tensor:
    """Do what `convolution_relu` does, in plain operators."""
    maps = maps.to(weights.dtype)
    if before is not None:
        maps = torch.relu(maps + before[:, None, None])
    found = functional.conv2d(maps.float(), weights.float(), bias.float())
    return torch.relu(found).to(weights.dtype)


SHAPES = [  # of maps and of filters: those of a first layer, a last one, and the smallest
    ((15, 5, 7, 6), (MOST_CHANNELS + 2, 5, 5, 4)),
    ((70, 40, 4, 4), (24, 40, 4, 4)),
    ((2, 1, 3, 9), (1, 1, 1, 5)),
]


@pytest.mark.parametrize(("shape", "filters"), SHAPES)
@pytest.mark.parametrize("order", ["contiguous", "channels last", "some of more channels"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_convolutions_are_those_of_plain_operators(
    shape: tuple[int, ...],
    filters: tuple[int, ...],
    order: str,
    biased: bool,
    precision: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(size: tuple[int, ...]) -> Tensor:
        # Whole numbers, so that all sums are exact: no ReLU can fall on another side.
        return torch.randint(-4, 5, size, generator=generator).to(precision)

    maps, weights = drawn(shape), drawn(filters)
    if order == "channels last":
        maps, weights = (each.to(memory_format=torch.channels_last) for each in (maps, weights))
    elif order == "some of more channels":
        maps = torch.cat((maps, maps), dim=1)[:, shape[1] :]
    bias, before = drawn(filters[:1]), drawn(shape[1:2]) if biased else None
    coming = None
    found = []
    for function in (convolution_relu, plain_convolution):
        inputs = [
            None if each is None else each.detach().requires_grad_()
            for each in (maps, weights, bias, before)
        ]
        out = function(*inputs)
        if coming is None:
            coming = torch.randint(-1, 2, out.shape, generator=generator).to(precision)
        out.backward(coming)
        found.append([out, *(each.grad for each in inputs if each is not None)])
    assert found[0][0].is_contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_convolution_casts_maps_and_keeps_nan() -> None:
    maps = torch.full((2, 3, 4, 4), 1 + 2**-12)  # 1 in half precision
    maps[1, 2, 3, 3] = float("nan")
    weights = torch.ones(2, 3, 3, 3, dtype=torch.float16)
    found = convolution_relu(maps, weights, torch.zeros(2), None)
    assert found.dtype == torch.float16
    assert (found[0] == 27).all()
    assert found[1].isnan().nonzero().tolist() == [[0, 1, 1], [1, 1, 1]]


def test_a_convolution_counts_its_operations() -> None:
    maps, weights = torch.zeros(2, 3, 7, 7), torch.zeros(5, 3, 4, 4, dtype=torch.float16)
    counted = []
    for function in (convolution_relu, plain_convolution):
        with FlopCounterMode(display=False) as counter:
            function(maps, weights, torch.zeros(5), None)
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] > 0


@pytest.mark.parametrize("shape", [(11, 11), (12, 11), (3, 4)])
def test_layers_in_half_precision_are_those_of_plain_operators(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    plain = hidden_layers(5, shape, NetworkConfig(conv_channels=16, hidden_dim=8)).half().float()
    fused = deepcopy(plain).half().to(memory_format=torch.channels_last)
    for layer in fused[:3]:
        layer.fused = True
    maps = torch.rand(9, 5, *shape).half()
    found, expected = fused(maps), plain(maps.float())
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-3)
    for one in (found, expected):
        one.sum().backward()
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        scale = theirs.grad.abs().max()
        torch.testing.assert_close(
            ours.grad.float() / scale, theirs.grad / scale, rtol=0, atol=2e-2
        )


@pytest.mark.parametrize("network", ["cnn", "attention"])
def test_a_network_with_fused_layers_is_its_twin(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutional, "uses_triton", lambda *_: True)
    widths = {"type": network, "conv_channels": 8, "hidden_dim": 8}
    config = small_config(
        observation={"heard_uavs": network == "attention"},
        networks={"actor": widths, "critic": widths},
        compute={"precision": "bfloat16"},
    )
    plain = make_actor(config.networks, config.compute, config.network_sizes)
    fused = place(deepcopy(plain), config.compute, torch.device("cpu"))
    kernels = (weights for weights in fused.parameters() if weights.dim() == 4)
    assert {weights.stride(1) for weights in kernels} == {1}
    sizes = config.network_sizes
    maps = torch.rand(4, sizes.actor_channels, *sizes.shape)
    found, expected = fused(maps), plain(maps)
    torch.testing.assert_close(found, expected)
    for one in (found, expected):
        one.square().sum().backward()
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_layers_that_are_timed_side_by_side_compute_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolutional, "uses_triton", lambda *_: True)
    config = small_config(dims=(50.0, 50.0))
    sizes = config.network_sizes
    torch.manual_seed(0)
    actor = place(
        make_actor(config.networks, config.compute, sizes), config.compute, torch.device("cpu")
    )
    maps = torch.rand(4, sizes.actor_channels, *sizes.shape).half()
    actor.body[2].to(memory_format=torch.channels_last)
    compared = list(layers._layers(actor, maps, torch.float16))
    assert [name for name, *_ in compared] == ["first layer", "last convolution"]
    for _, ours, theirs in compared:
        torch.testing.assert_close(ours(), theirs(), rtol=1e-2, atol=1e-3)


def test_a_network_leaves_a_gpu_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutional, "uses_triton", lambda *_: True)
    config, cpu = small_config(), torch.device("cpu")
    network = place(
        make_actor(config.networks, config.compute, config.network_sizes), config.compute, cpu
    )
    layers = [each for each in network.modules() if isinstance(each, ConvolutionReLU)]
    assert all(layer.fused for layer in layers)
    portable = PortableActor(network).actor
    assert portable is not network
    monkeypatch.setattr(convolutional, "uses_triton", lambda *_: False)
    for plain in (portable, place(network, config.compute, cpu)):
        fused = [each.fused for each in plain.modules() if isinstance(each, ConvolutionReLU)]
        assert fused == [False] * len(layers)


def test_other_orders_of_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        bias_relu(torch.zeros(2, 3, 4, 5).transpose(0, 1), torch.zeros(2))


def test_weights_in_another_order_than_maps_are_refused() -> None:
    first = torch.zeros(2, 3, 4, 4, dtype=torch.float16)
    last = first.to(memory_format=torch.channels_last)
    for maps, weights in ((first, last), (last, first)):
        with pytest.raises(ValueError, match="order of the maps"):
            convolution_relu(maps, weights, torch.zeros(2), None)


def test_operators_keep_the_promises_of_their_schemas() -> None:
    maps, bias = torch.randn(2, 3, 4, 4).half(), torch.zeros(3).half()
    weights = torch.randn(3, 3, 2, 2).half()
    calls = [
        ("bias_relu", (maps, bias)),
        ("convolution_relu", (maps, weights, bias, None)),
        ("convolution_relu", (maps, weights, bias, bias.clone())),
    ]
    for name, arguments in calls:
        torch.library.opcheck(
            getattr(torch.ops.marl_framework, name).default,
            tuple(each if each is None else each.requires_grad_() for each in arguments),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )
