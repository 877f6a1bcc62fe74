"""Updates that are not finite are not applied; other updates are those of plain Adam."""

import pytest
import torch
from torch import nn

from marl_framework.algorithms.optimisers import apply_gradients, make_adam
from tests.algorithms.making import make, parameters, rollout_on, shuffler

SCALER = torch.amp.GradScaler("cpu", enabled=False)


def moments_of(coma):
    """Weights and Adam's moments, without the counter of training steps."""
    return {name: str(v) for name, v in coma.state_dict().items() if name != "training_step"}


def spoiled(what: str):
    rollout = rollout_on(num_envs=4)
    if what == "state":
        rollout.observations[0, 0, 0] = float("nan")
    else:
        rollout.rewards[1, 0] = float(what)
    return rollout


@pytest.mark.parametrize("what", ["nan", "inf", "state"])
@pytest.mark.parametrize("started", [False, True])
def test_a_bad_update_changes_nothing(what: str, started: bool) -> None:
    coma = make(batch_number=1, data_passes=1, target_update_mode="soft", tau=1.0)
    if started:
        coma.update(rollout_on(), 0.1)
    state, weights = moments_of(coma), parameters(coma)
    stats = coma.update(spoiled(what), 0.1)
    bad_actor = what == "state"
    assert stats["skipped_updates"] == 1 + bad_actor
    actor = 0 if bad_actor else len(list(coma.actor.parameters()))
    pairs = list(zip(weights, parameters(coma), strict=True))
    assert all(torch.equal(old, new) for old, new in pairs[actor:])
    if bad_actor and started:  # the moments and step counts too
        assert moments_of(coma) == state
    assert coma.update(rollout_on(), 0.1)["skipped_updates"] == 0
    assert all(p.isfinite().all() for p in parameters(coma))


def test_only_the_bad_batch_is_skipped() -> None:
    coma = make(batch_number=4, data_passes=1)
    before = parameters(coma)
    stats = coma.update(spoiled("state"), 0.1, shuffler(4))
    assert 2 <= stats["skipped_updates"] < 8
    assert not all(map(torch.equal, before, parameters(coma)))


def test_an_infinite_loss_is_bad_though_its_gradients_are_finite() -> None:
    network = nn.Linear(3, 2)
    optimizer, before = make_adam(network, 0.1, recorded=False), network.weight.clone()
    for loss, expected in ((torch.inf, 1), (1.0, 0)):
        for p in network.parameters():
            p.grad = torch.ones_like(p)
        assert apply_gradients(torch.tensor(loss), optimizer, SCALER, 1.0)[1] == expected
        assert torch.equal(network.weight, before) == bool(expected)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("limit", [0.1, 1e9])
def test_steps_are_those_of_plain_adam_on_clipped_gradients(limit: float, fused: bool) -> None:
    torch.manual_seed(3)
    ours, theirs = (nn.Parameter(value) for value in torch.ones(2, 5))
    guarded, plain = (torch.optim.Adam([p], lr=0.1, fused=fused) for p in (ours, theirs))
    for gradient in torch.randn(3, 5):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        norm, bad = apply_gradients(torch.zeros(()), guarded, SCALER, limit)
        torch.testing.assert_close(norm, gradient.norm())
        assert not bad
        nn.utils.clip_grad_norm_([theirs], limit)
        plain.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0 if limit > 1 else 1e-6)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-9)
