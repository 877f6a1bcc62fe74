"""Ways to compute a convolution: equal outputs and gradients, and the choice among them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.helpers.pretend_gpu import PretendGpu, pretend_gpu
from marl_framework import device
from marl_framework.config.loading import load_config
from marl_framework.device import autocast
from marl_framework.networks.convolutional import place
from marl_framework.networks.layers import (
    Convolution,
    Way,
    as_linear,
    convolutions,
    use_ways,
)
from marl_framework.networks.registry import make_critic
from marl_framework.training.trainer import Trainer

CPU = torch.device("cpu")


def results(
    layer: Convolution, maps: Tensor, precision: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return the output of a layer, and the gradients of weights, bias and maps."""
    maps = maps.clone().requires_grad_()
    with autocast(CPU, precision):
        outputs = layer(maps)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    wanted = (layer.weight, layer.bias, maps)
    return [outputs.detach(), *torch.autograd.grad((outputs * weights).sum(), wanted)]


@given(
    rows=st.sampled_from([1, 3, 64, 65]),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    shape=st.tuples(st.integers(1, 6), st.sampled_from([1, 2, 3, 4, 5, 6, 70])),
    kernel=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    way=st.sampled_from([Way.CHANNELS_LAST, Way.PRODUCT]),
    strided=st.booleans(),
)
@settings(max_examples=60)
def test_all_ways_are_the_convolution(rows, channels, shape, kernel, way, strided):
    kernel = tuple(map(min, kernel, shape))
    layer = Convolution(*channels, kernel).double()
    maps = torch.randn(rows, channels[0], *shape, dtype=torch.float64)
    if strided:
        maps = maps.contiguous(memory_format=torch.channels_last)
    expected = results(layer, maps)
    layer.use(way)
    for ours, theirs in zip(results(layer, maps), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    layer.use(Way.CONVOLUTION)
    assert all(map(torch.equal, results(layer, maps), expected))


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("learns", [True, False])
def test_the_operator_of_a_gpu_has_the_gradients_of_autograd(precision, learns):
    layer = Convolution(3, 8, (4, 3)).to(precision)
    maps = torch.randn(5, 3, 7, 6, dtype=precision, requires_grad=learns)
    wanted = (layer.weight, layer.bias, *([maps] if learns else []))
    found = []
    for layer.fuses in (True, False):
        outputs = layer(maps)
        found.append((outputs, *torch.autograd.grad(outputs.square().sum(), wanted)))
    assert all(map(torch.equal, *found))


@given(
    rows=st.sampled_from([1, 65]),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    orders=st.tuples(*[st.sampled_from([torch.contiguous_format, torch.channels_last])] * 2),
)
@settings(max_examples=40)
def test_a_kernel_as_large_as_its_input_is_a_linear_layer(rows, channels, shape, orders):
    layer = Convolution(*channels, shape).double().to(memory_format=orders[0])
    maps = torch.randn(rows, channels[0], *shape, dtype=torch.float64)
    maps = maps.contiguous(memory_format=orders[1])
    expected = results(layer, maps)

    def linear(maps: Tensor) -> Tensor:
        return as_linear(maps, layer.weight, layer.bias).relu()

    linear.weight, linear.bias = layer.weight, layer.bias
    for ours, theirs in zip(results(linear, maps), expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("where", "side", "linear"),
    [("cuda", 4, True), ("cuda", 5, False), ("cpu", 4, False), ("meta", 4, False)],
)
def test_only_kernels_as_large_as_their_input_are_linear_on_a_gpu(where, side, linear):
    with pretend_gpu(PretendGpu(values=False)), FlopCounterMode(display=False) as counter:
        layer = Convolution(8, 16, 4).to(where)
        outputs = layer(torch.empty(2, 8, side, side, device=where))
    assert outputs.shape == (2, 16, side - 3, side - 3)
    assert set(counter.get_flop_counts()["Global"]) == {
        torch.ops.aten.addmm if linear else torch.ops.aten.convolution
    }


@pytest.mark.parametrize("way", [Way.CHANNELS_LAST, Way.PRODUCT])
def test_half_precision_rounds_hardly_more_than_the_convolution(way):
    layer, maps = Convolution(32, 32, 4), torch.randn(70, 32, 7, 7)
    exact = results(layer, maps)

    def errors() -> list[float]:
        rounded = results(layer, maps, torch.bfloat16)
        return [float((r - e).norm() / e.norm()) for r, e in zip(rounded, exact, strict=True)]

    convolution = errors()
    layer.use(way)
    for ours, theirs in zip(errors(), convolution, strict=True):
        assert ours < 1.2 * theirs


@pytest.mark.parametrize(
    ("choice", "precision", "vendor", "expected"),
    [
        ("auto", "float32", "GenuineIntel", ["channels_last", "product", "product"]),
        ("auto", "float32", "AuthenticAMD", ["channels_last", "channels_last", "product"]),
        ("auto", "bfloat16", "GenuineIntel", ["product"] * 3),
        ("auto", "bfloat16", "AuthenticAMD", ["product"] * 3),
        ("convolution", "float32", "AuthenticAMD", ["convolution"] * 3),
        ("product", "float32", "AuthenticAMD", ["product"] * 3),
    ],
)
def test_configuration_and_processor_choose_the_ways(
    choice, precision, vendor, expected, monkeypatch, tmp_path
):
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n", encoding="utf-8")
    monkeypatch.setattr(device, "CPUINFO", info)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    overrides = [f"compute.convolutions={choice}", f"compute.precision={precision}"]
    config = load_config("params_fast.yaml", overrides)
    critic = place(
        make_critic(config.networks, config.compute, config.network_sizes), config.compute, CPU
    )
    assert [layer.way.value for layer in convolutions(critic)] == expected


def test_small_layers_stay_convolutions():
    network = nn.Sequential(Convolution(2, 2, 3), Convolution(2, 2, 3))
    use_ways(network, "auto", half=True)
    assert {layer.way for layer in convolutions(network)} == {Way.CONVOLUTION}


def test_a_network_without_maps_in_memory_has_shapes_in_all_ways():
    for way in Way:
        layer = Convolution(3, 5, (4, 4), device="meta")
        layer.use(way)
        outputs = layer(torch.empty(2, 3, 6, 7, device="meta", requires_grad=True))
        assert outputs.shape == (2, 5, 3, 4)
        outputs.sum().backward()
        assert layer.weight.grad.shape == layer.weight.shape


TRAINING = ["compute.device=cpu", "compute.precision=float32", "evaluation.interval=0"]


def test_a_training_learns_the_same_in_all_ways():
    states = []
    for way in Way:
        sets = [*TRAINING, f"compute.convolutions={way.value}"]
        trainer = Trainer(load_config("params_test.yaml", sets), CPU)
        trainer.train(None)
        states.append(trainer.state_dict())
    for state in states[1:]:
        for name in ("actor", "critic"):
            for key, expected in states[0][name].items():
                torch.testing.assert_close(state[name][key], expected, rtol=1e-2, atol=1e-4)


def test_products_of_many_samples_are_made_in_parts():
    layer, maps = Convolution(8, 4, 5).double(), torch.randn(600, 8, 12, 13, dtype=torch.float64)
    expected = results(layer, maps)  # 600 samples have 43,200 patches
    layer.use(Way.PRODUCT)
    for ours, theirs in zip(results(layer, maps), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
