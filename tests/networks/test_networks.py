"""Attention over heard UAVs in any order and number, and convolutions on any lattice."""

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor

from marl_framework.config.learning import NetworkConfig
from marl_framework.config.model import NetworkSizes
from marl_framework.networks.attention import AttentionNetwork
from marl_framework.networks.convolutional import ConvolutionalNetwork
from marl_framework.networks.registry import make_actor, make_critic
from tests.algorithms.making import settings
from tests.small import small_config

CHANNELS, SHAPE, ACTIONS, TEAM = 3, (7, 7), 6, 4


def network() -> AttentionNetwork:
    torch.manual_seed(0)
    settings = NetworkConfig(type="attention", conv_channels=8, hidden_dim=16)
    return AttentionNetwork(TEAM + CHANNELS, SHAPE, ACTIONS, settings, TEAM)


def seen(heard: tuple[bool, ...], batch: int = 5) -> tuple[Tensor, Tensor]:
    """Return planes of UAVs, 0 where not heard, and the maps that follow."""
    generator = torch.Generator().manual_seed(1)
    planes = torch.rand(batch, len(heard), *SHAPE, generator=generator)
    maps = torch.rand(batch, CHANNELS, *SHAPE, generator=generator)
    return planes * torch.tensor(heard)[:, None, None], maps


def output(*parts: Tensor) -> Tensor:
    return network()(torch.cat(parts, dim=1))


def test_the_order_of_the_others_does_not_matter() -> None:
    planes, maps = seen((True, True, True, True))
    expected = output(planes, maps)
    for order in ([0, 3, 1, 2], [0, 2, 3, 1]):
        torch.testing.assert_close(output(planes[:, order], maps), expected)
    assert not torch.allclose(output(planes[:, [1, 0, 2, 3]], maps), expected, atol=1e-3)


def test_uavs_that_are_not_heard_are_as_none() -> None:
    planes, maps = seen((True, False, True, False))
    expected = output(planes, maps)
    torch.testing.assert_close(output(planes[:, [0, 2]], maps), expected)
    larger = torch.cat((planes, planes[:, [1] * 8]), dim=1)
    torch.testing.assert_close(output(larger, maps), expected)
    assert not torch.allclose(output(planes[:, :1], maps), expected, atol=1e-3)


def test_every_weight_learns() -> None:
    planes, maps = seen((True, True, False, True))
    learner = network()
    learner(torch.cat((planes, maps), dim=1)).square().sum().backward()
    for name, weight in learner.named_parameters():
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx_gives_the_same(tmp_path: Path) -> None:
    exported = network().eval()
    planes, maps = seen((True, False, True, True))
    rows = torch.cat((planes, maps), dim=1)
    file = tmp_path / "attention.onnx"
    torch.onnx.export(exported, (rows,), str(file), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(file))
    (found,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), exported(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("actor", "critic", "heard_uavs", "key"),
    [
        ("attention", "attention", False, r"observation\.heard_uavs"),
        ("attention", "cnn", True, r"networks\.critic\.type"),
        ("cnn", "cnn", True, r"networks\.actor\.type"),
    ],
)
def test_attention_and_planes_require_each_other(actor, critic, heard_uavs, key) -> None:
    networks = {"actor": {"type": actor}, "critic": {"type": critic}}
    with pytest.raises(ValueError, match=key):
        small_config(networks=networks, observation={"heard_uavs": heard_uavs})


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match=r"heads 3 .* hidden_dim 16"):
        NetworkConfig(type="attention", hidden_dim=16, heads=3)


@pytest.mark.parametrize("shape", [(11, 11), (6, 6), (2, 2), (5, 13), (21, 21)])
def test_networks_take_any_lattice(shape: tuple[int, int]) -> None:
    sizes = NetworkSizes(actor_channels=7, critic_channels=12, shape=shape, num_actions=6)
    config = settings()
    actor = make_actor(config.networks, config.compute, sizes)
    critic = make_critic(config.networks, config.compute, sizes)
    assert actor(torch.zeros(2, 7, *shape)).shape == (2, 6)
    assert critic(torch.zeros(2, 12, *shape)).shape == (2, 6)


def test_the_papers_networks_end_in_one_cell() -> None:
    actor = ConvolutionalNetwork(7, (11, 11), 6, NetworkConfig())
    counts = [p.numel() for p in actor.parameters() if p.dim() > 1]
    assert counts == [7 * 256 * 25, 256 * 256 * 16, 256 * 256 * 16, 256 * 256, 256 * 6]
