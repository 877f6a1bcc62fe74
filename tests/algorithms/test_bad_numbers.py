"""Updates that are not finite are not applied; micro-batches make the same update."""

from __future__ import annotations

import pytest
import torch

from marl_framework.algorithms import actor_critic
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.optimisers import descend
from tests.algorithms.making import make, rollout_on, same, settings
from tests.algorithms.toy_game import ToyGame


def shuffler() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def state_of(coma):
    """Weights and Adam's moments, without the counter of training steps."""
    state = coma.state_dict()
    return {name: state[name] for name in state if name != "training_step"}


def spoiled(what: str):
    rollout = rollout_on(num_envs=4)
    if what == "reward":
        rollout.rewards[1, 0] = float("nan")
    elif what == "infinite reward":
        rollout.rewards[1, 0] = float("inf")
    else:
        rollout.observations[0, 0, 0] = float("nan")
    return rollout


@pytest.mark.parametrize("what", ["reward", "infinite reward", "state"])
@pytest.mark.parametrize("started", [False, True])
def test_a_bad_update_leaves_everything_as_it_was(what: str, started: bool) -> None:
    coma = make(batch_number=1, data_passes=1, target_update_mode="soft", tau=1.0)
    if started:
        coma.update(rollout_on(), 0.1)
    before = {name: str(value) for name, value in state_of(coma).items()}
    weights = [p.clone() for p in (*coma.actor.parameters(), *coma.critic.parameters())]
    stats = coma.update(spoiled(what), 0.1)
    bad_actor = what == "state"
    assert stats["skipped_updates"] == 1 + bad_actor
    after = (*coma.actor.parameters(), *coma.critic.parameters())
    actor = len(list(coma.actor.parameters()))
    for index, (old, new) in enumerate(zip(weights, after, strict=True)):
        if bad_actor or index >= actor:
            assert torch.equal(old, new)
    if bad_actor and started:  # the moments and step counts too
        assert {name: str(value) for name, value in state_of(coma).items()} == before
    assert coma.update(rollout_on(), 0.1)["skipped_updates"] == 0
    assert all(p.isfinite().all() for p in (*coma.actor.parameters(), *coma.critic.parameters()))


def test_only_the_bad_batch_is_skipped() -> None:
    coma = make(batch_number=4, data_passes=1)
    before = [p.clone() for p in coma.actor.parameters()]
    stats = coma.update(spoiled("state"), 0.1, shuffler())
    assert 2 <= stats["skipped_updates"] < 8
    assert any(
        not torch.equal(old, new) for old, new in zip(before, coma.actor.parameters(), strict=True)
    )


def test_an_infinite_loss_is_bad_though_its_gradients_are_finite() -> None:
    coma = make()
    before = [p.clone() for p in coma.actor.parameters()]
    for p in coma.actor.parameters():
        p.grad = torch.ones_like(p)
    for loss, expected in ((torch.inf, 1), (1.0, 0)):
        guarded = (torch.tensor(loss), coma.actor_optimizer, coma.scaler, 1.0)
        assert descend(*guarded)[1] == expected
        unchanged = map(torch.equal, before, coma.actor.parameters())
        assert all(unchanged) == bool(expected)


def test_good_updates_are_those_of_plain_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard changes no bit of an update that is finite and not clipped."""

    def unguarded(loss, optimizer, *_, **__):
        optimizer.step()
        return torch.zeros(()), torch.zeros(())

    unclipped = {"gradient_norm": 1e9}
    guarded, plain = (make(actor=unclipped, critic=unclipped) for _ in range(2))
    for coma, step in ((guarded, descend), (plain, unguarded)):
        monkeypatch.setattr(actor_critic, "descend", step)
        for _ in range(3):
            coma.update(rollout_on(num_envs=4), 0.1, shuffler().manual_seed(7))
    assert same(guarded.actor, plain.actor)
    assert same(guarded.critic, plain.critic)
    for name in ("actor_optimizer", "critic_optimizer"):
        assert str(getattr(guarded, name).state_dict()) == str(getattr(plain, name).state_dict())


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_weight_decay_is_that_of_the_optimiser(kind: type[torch.optim.Adam]) -> None:
    generator = torch.Generator().manual_seed(3)
    start, *gradients = torch.randn(4, 5, generator=generator)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimisers = [kind([p], lr=0.1, weight_decay=0.3, fused=True) for p in (ours, theirs)]
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        descend(torch.zeros(()), optimisers[0], scaler, torch.inf)
        optimisers[1].step()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("size", [1, 3, 5, 100])
@pytest.mark.parametrize("normalize", [False, True])
def test_micro_batches_make_the_update_of_the_whole_batch(size: int, normalize: bool) -> None:
    options = {
        "normalize_advantages": normalize,
        "entropy_coefficient": 0.01,
        "clip_ratio": 0.2,
        "data_passes": 1,
    }
    whole, parts = make(**options), make(micro_batch=size, **options)
    sizes = []
    forward = parts.critic.forward
    parts.critic.forward = lambda x: sizes.append(len(x)) or forward(x)
    stats = [coma.update(rollout_on(num_envs=4), 0.1, shuffler()) for coma in (whole, parts)]
    assert max(sizes) == min(size, 8)  # 16 transitions in 2 batches
    for name in stats[0]:
        torch.testing.assert_close(stats[0][name], stats[1][name], rtol=1e-4, atol=1e-5)
    for a, b in ((whole.actor, parts.actor), (whole.critic, parts.critic)):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            # Adam's first step divides gradients by their size; compare the gradients.
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)


def test_micro_batches_run_on_the_meta_device() -> None:
    config = settings(micro_batch=3, normalize_advantages=True)
    coma = COMAWrapper(config, ToyGame.sizes, "meta")
    assert coma.update(rollout_on("meta"), 0.1)["skipped_updates"].device.type == "meta"
