import pytest
import torch

from marl_framework.config.learning import NetworkConfig
from marl_framework.config.model import NetworkSizes
from marl_framework.networks.convolutional import ConvolutionalNetwork
from marl_framework.networks.registry import make_actor, make_critic
from tests.algorithms.making import settings


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


def test_gradient_checkpointing_keeps_less_until_the_backward_pass() -> None:
    widths = NetworkConfig(conv_channels=16, hidden_dim=16)
    network, maps = ConvolutionalNetwork(7, (11, 11), 6, widths), torch.randn(32, 7, 11, 11)
    kept = []
    for network.recompute in (False, True):
        saved: dict[int, int] = {}

        def keep(tensor: torch.Tensor, saved: dict[int, int] = saved) -> torch.Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(maps).sum()
        weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
        kept.append(sum(size for place, size in saved.items() if place not in weights))
    assert kept[1] < kept[0] / 2
