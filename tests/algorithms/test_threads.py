import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from marl_framework.algorithms.threads import LEAST, with_batch_threads
from marl_framework.config.learning import NetworkConfig
from marl_framework.networks.convolutional import ConvolutionalNetwork
from tests.algorithms.making import make, rollout_on

CPU = torch.device("cpu")
THREADS = 3


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(1)


def network(recompute: bool = False) -> ConvolutionalNetwork:
    torch.manual_seed(0)
    made = ConvolutionalNetwork(2, (6, 6), 5, NetworkConfig(conv_channels=8, hidden_dim=16))
    made.recompute = recompute
    return made


def learn(forward: nn.Module, rows: Tensor, learner: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """Return the output of a pass, and the gradients of its backward pass."""
    learner.zero_grad()
    output = forward(rows)
    (output * torch.arange(1, 6)).square().mean().backward()
    return output.detach(), [p.grad.clone() for p in learner.parameters()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [THREADS * LEAST, THREADS * LEAST + 7])
def test_shares_give_the_passes_of_the_whole_batch(rows, precision, recompute) -> None:
    whole = network(recompute)
    shared, batch = with_batch_threads(whole, CPU), torch.randn(rows, 2, 6, 6)
    error = 1e-5 if precision is torch.float32 else 0.02
    with torch.autocast("cpu", precision, precision is not torch.float32):
        expected, gradients = learn(whole, batch, whole)
        output, found = learn(shared, batch, whole)
        again, repeated = learn(shared, batch, whole)
        with torch.no_grad():
            unlearned = shared(batch)
    assert output.dtype == unlearned.dtype == expected.dtype
    torch.testing.assert_close(output, expected, rtol=error, atol=error)
    torch.testing.assert_close(unlearned, expected, rtol=error, atol=error)
    for ours, theirs in zip(found, gradients, strict=True):
        scale = theirs.abs().max()
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=error, atol=error)
    assert torch.equal(output, again)
    assert all(map(torch.equal, found, repeated))


class Witness(nn.Module):
    """Records its threads, the number of cores of their operations, and their rows."""

    def __init__(self, independent_rows: bool = True) -> None:
        super().__init__()
        self.independent_rows = independent_rows
        self.layer = nn.Linear(1, 1)
        self.seen: list[tuple[int, int, int]] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.seen.append((threading.get_ident(), torch.get_num_threads(), len(rows)))
        return self.layer(rows)


def test_each_share_has_a_thread_of_one_core() -> None:
    witness = Witness()
    with_batch_threads(witness, CPU)(torch.zeros(THREADS * LEAST + 1, 1))
    threads, cores, rows = zip(*witness.seen, strict=True)
    assert len(set(threads) - {threading.get_ident()}) == THREADS
    assert set(cores) == {1}
    assert sorted(rows) == [LEAST, LEAST, LEAST + 1]
    assert torch.get_num_threads() == THREADS


@pytest.mark.parametrize(("independent", "rows"), [(True, 2 * LEAST - 1), (False, 3 * LEAST)])
def test_small_batches_and_dependent_rows_stay_whole(independent: bool, rows: int) -> None:
    witness = Witness(independent)
    with_batch_threads(witness, CPU)(torch.zeros(rows, 1))
    assert witness.seen == [(threading.get_ident(), THREADS, rows)]


def test_an_error_in_a_share_reaches_the_caller() -> None:
    class Broken(Witness):
        def forward(self, rows: Tensor) -> Tensor:
            raise RuntimeError("no rows today")

    with pytest.raises(RuntimeError, match="no rows today"):
        with_batch_threads(Broken(), CPU)(torch.zeros(THREADS * LEAST, 1))


def test_all_networks_of_coma_learn_in_shares() -> None:
    coma, rollout = make(), rollout_on(num_envs=THREADS * LEAST)
    threads: dict[str, set[int]] = {name: set() for name in coma.modules}
    for name, module in coma.modules.items():
        module.register_forward_hook(
            lambda *_, ran_on=threads[name]: ran_on.add(threading.get_ident())
        )
    coma.update(rollout, epsilon=0.1)
    for ran_on in threads.values():
        assert len(ran_on - {threading.get_ident()}) == THREADS


def test_an_unused_parameter_gets_no_gradient() -> None:
    learner = network()
    learner.unused = nn.Linear(2, 2)
    rows = torch.randn(THREADS * LEAST, 2, 6, 6)
    _, gradients = learn(with_batch_threads(learner, CPU), rows, learner)
    assert gradients[0].any()
    assert not any(gradient.any() for gradient in gradients[-2:])
