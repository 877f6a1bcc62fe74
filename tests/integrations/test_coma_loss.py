from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import MaskedCategorical, ProbabilisticActor
from torchrl.objectives import SoftUpdate, ValueEstimators

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.integrations.torchrl import COMALoss, CounterfactualCritic
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.task import MissionTask
from tests.algorithms.torchrl_sac import FirstChannels
from tests.small import small_config

# The target critic stands still where a test does not move it.
pytestmark = pytest.mark.filterwarnings("ignore:No target network updater:UserWarning")

GAMMA, LAMBDA = 0.9, 0.7


def _loss(actor: nn.Module, critic: nn.Module, **options: Any) -> COMALoss:
    policy = ProbabilisticActor(
        TensorDictModule(actor, ["maps"], ["logits"]),
        in_keys={"logits": "logits", "mask": "mask"},
        out_keys=["action"],
        distribution_class=MaskedCategorical,
    )
    critic = TensorDictModule(critic, ["maps"], ["action_value"])
    return COMALoss(policy, critic, **{"gamma": GAMMA, "lmbda": LAMBDA, **options})


def _as_tensordict(rollout: Rollout) -> TensorDict:
    """A rollout [T, E, …] as a collector returns it, [E, T]."""
    t, e, n = rollout.actions.shape
    maps = torch.cat((rollout.observations, rollout.critic_maps), dim=3).transpose(0, 1)
    masks = rollout.masks.transpose(0, 1)
    done = torch.zeros(e, t, 1, dtype=torch.bool)
    done[:, -1] = True
    after = {
        "maps": maps,  # what follows the end does not count
        "mask": masks,
        "reward": rollout.rewards.mT[..., None, None].expand(-1, -1, n, 1),
        "done": done,
        "terminated": done.clone(),
    }
    now = {"maps": maps, "mask": masks, "action": rollout.actions.transpose(0, 1)}
    return TensorDict({**now, "next": TensorDict(after, [e, t])}, [e, t])


@pytest.mark.parametrize("advantage", ["critic", "return"])
def test_losses_targets_and_gradients_are_the_cores(advantage: str) -> None:
    learning: dict[str, Any] = {
        "advantage": advantage,
        "gamma": GAMMA,
        "lambda": LAMBDA,
        "data_passes": 1,
        "batch_number": 1,
    }
    config = small_config(learning={**learning, "entropy_coefficient": 0.02})
    task = MissionTask(MissionEnvironment(config, 4, "cpu"))
    wrapper = COMAWrapper(config, task.sizes, "cpu")
    with torch.no_grad():  # the target differs from the critic
        for parameter in wrapper.target_critic.parameters():
            parameter.mul_(1.1)
    rollout = RolloutCollector(task, len(task.metric_names)).collect(wrapper.act, 0.0)
    loss = _loss(  # of copies: a loss takes the parameters out of its modules
        FirstChannels(deepcopy(wrapper.actor), task.sizes.actor_channels),
        FirstChannels(deepcopy(wrapper.critic), task.sizes.critic_channels),
        entropy_coeff=0.02,
        advantage=advantage,
    )
    for name, parameter in wrapper.target_critic.named_parameters():
        key = ("module", "network", *name.split("."))
        loss.target_critic_network_params[key].data.copy_(parameter)
    data = loss.targets(_as_tensordict(rollout))
    expected = wrapper.transitions(rollout).targets.view_as(rollout.actions)
    expected = expected.transpose(0, 1).unsqueeze(-1)
    torch.testing.assert_close(data["value_target"], expected)

    losses = loss(data.reshape(-1))  # without their order in time
    sum(losses[f"loss_{name}"] for name in ("objective", "entropy", "critic")).backward()
    norms = [
        torch.stack([p.grad.norm() for p in params.values(True, True)]).norm()
        for params in (loss.actor_network_params, loss.critic_network_params)
    ]
    stats = wrapper.update(rollout, epsilon=0.0)
    total = losses["loss_objective"] + losses["loss_entropy"]
    torch.testing.assert_close(total.detach(), stats["actor_loss"])
    torch.testing.assert_close(losses["loss_critic"].detach(), stats["critic_loss"])
    torch.testing.assert_close(losses["entropy"], stats["policy_entropy"])
    torch.testing.assert_close(losses["advantage_std"], stats["advantage_std"])
    torch.testing.assert_close(losses["td_error"], stats["td_error"])
    torch.testing.assert_close(norms[0], stats["actor_gradient_norm"])
    torch.testing.assert_close(norms[1], stats["critic_gradient_norm"])
    assert losses.keys() == set(loss.out_keys)


class _Table(nn.Module):
    """Writes a learnable row [A] for every state."""

    def __init__(self, row: list[float]) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.tensor(row))

    def forward(self, maps: Tensor) -> Tensor:
        return self.row.expand(*maps.shape[:-1], -1) * maps


def _cut_data() -> TensorDict:
    """Two missions of six steps for two agents: ends, truncations and an open end."""
    torch.manual_seed(0)
    maps = torch.rand(2, 7, 2, 1)
    reward = torch.rand(2, 6, 1, 1).expand(-1, -1, 2, -1).clone()
    terminated, done = torch.zeros(2, 2, 6, 1, dtype=torch.bool)
    terminated[0, 2] = done[0, 2] = True
    done[1, 3] = True  # truncated
    mask = torch.ones(2, 6, 2, 3, dtype=torch.bool)
    after = {"maps": maps[:, 1:], "mask": mask, "reward": reward, "done": done}
    now = {"maps": maps[:, :-1], "mask": mask, "action": torch.randint(3, (2, 6, 2))}
    return TensorDict(
        {**now, "next": TensorDict({**after, "terminated": terminated}, [2, 6])}, [2, 6]
    )


def test_targets_of_cut_episodes_are_those_of_a_plain_loop() -> None:
    row = [0.5, -1.0, 2.0]
    loss = _loss(_Table([0.3, 0.1, -0.2]), _Table(row))
    data = _cut_data()
    target = loss.targets(data.clone())["value_target"].squeeze(-1)
    q, logits = torch.tensor(row), torch.tensor([0.3, 0.1, -0.2])
    for e in range(2):
        for i in range(2):
            g = 0.0
            for t in reversed(range(6)):
                after, here = data["next"][e, t], data["next", "maps"][e, t, i]
                if t == 5 or after["done"]:
                    beyond = ((logits * here).softmax(-1) @ (q * here)).item()
                    g = beyond
                else:
                    beyond = (q[data["action"][e, t + 1, i]] * data["maps"][e, t + 1, i]).item()
                alive = 0.0 if after["terminated"] else 1.0
                g = after["reward"][i].item() + GAMMA * alive * ((1 - LAMBDA) * beyond + LAMBDA * g)
                assert target[e, t, i].item() == pytest.approx(g, rel=1e-5), (e, t, i)


def test_targets_of_a_batch_a_single_trajectory_and_time_first_data_are_the_same() -> None:
    loss, data = _loss(_Table([0.3, 0.1, -0.2]), _Table([0.5, -1.0, 2.0])), _cut_data()
    target = loss.targets(data.clone())["value_target"]
    for e in range(2):
        torch.testing.assert_close(loss.targets(data[e].clone())["value_target"], target[e])
    time_first = data.transpose(0, 1).contiguous()  # [T, E], as some buffers keep it
    turned = loss.targets(time_first.transpose(0, 1).contiguous())["value_target"]
    assert torch.equal(turned, target)
    assert not torch.allclose(loss.targets(time_first)["value_target"].transpose(0, 1), target)


def test_without_targets_the_loss_makes_them_and_keys_can_be_renamed() -> None:
    loss = _loss(_Table([0.3, 0.1, -0.2]), _Table([0.5, -1.0, 2.0]))
    data = _cut_data()
    expected = loss(loss.targets(data.clone()))["loss_critic"]
    assert torch.equal(loss(data)["loss_critic"], expected)
    assert data.get("value_target", None) is None
    loss.set_keys(value_target=("group", "target"), reward="income")
    data["next"].rename_key_("reward", "income")
    renamed = loss.targets(data.clone())
    assert torch.equal(loss(renamed)["loss_critic"], expected)
    assert ("group", "target") in renamed.keys(True)


def test_hyperparameters_of_the_targets() -> None:
    loss = _loss(_Table([0.0] * 3), _Table([0.0] * 3))
    loss.make_value_estimator(ValueEstimators.TDLambda, gamma=0.5, lmbda=0.1)
    assert (loss.gamma, loss.lmbda) == (0.5, 0.1)
    for wrong in ({"value_type": ValueEstimators.GAE}, {"average_rewards": True}):
        with pytest.raises(ValueError, match="TDLambda"):
            loss.make_value_estimator(**wrong)


@pytest.mark.parametrize(
    ("option", "value"), [("gamma", 2), ("lmbda", -0.1), ("advantage", "returns")]
)
def test_an_invalid_option_is_named(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{option}.*{value}"):
        _loss(_Table([0.0] * 3), _Table([0.0] * 3), **{option: value})


@pytest.mark.parametrize("name", ["reward", "done", "terminated", "action", "action_value"])
def test_a_missing_entry_is_named(name: str) -> None:
    loss = _loss(_Table([0.0] * 3), _Table([0.0] * 3))
    loss.set_keys(**{name: ("group", "nowhere")})
    with pytest.raises(ValueError, match=f"^{name}.*nowhere.*set_keys"):
        loss.targets(_cut_data())


def test_normalised_advantages_change_the_scale_alone() -> None:
    torch.manual_seed(1)
    data = _cut_data()
    actor, critic = _Table([0.3, 0.1, -0.2]), _Table([0.5, -1.0, 2.0])
    plain, scaled = (_loss(actor, critic, normalize_advantage=on)(data) for on in (False, True))
    assert not torch.equal(plain["loss_objective"], scaled["loss_objective"])
    assert torch.equal(plain["loss_critic"], scaled["loss_critic"])
    tenfold = _loss(actor, _Table([5.0, -10.0, 20.0]), normalize_advantage=True)(data)
    torch.testing.assert_close(tenfold["loss_objective"], scaled["loss_objective"])


def test_the_target_critic_follows_by_torchrls_updater() -> None:
    loss = _loss(_Table([0.0] * 3), _Table([1.0, 2.0, 3.0]))
    updater = SoftUpdate(loss, tau=0.25)
    with torch.no_grad():
        loss.critic_network_params["module", "row"].zero_()
    updater.step()
    row = loss.target_critic_network_params["module", "row"]
    torch.testing.assert_close(row, torch.tensor([0.75, 1.5, 2.25]))


def test_a_counterfactual_critic_ignores_the_own_action_and_nothing_else() -> None:
    critic = CounterfactualCritic(num_features=4, n_agents=3, num_actions=5, hidden=16)
    seen, action = torch.rand(2, 6, 3, 4), torch.randint(5, (2, 6, 3))
    values = critic(seen, action)
    assert values.shape == (2, 6, 3, 5)
    for i in range(3):
        other = action.clone()
        other[..., i] = (other[..., i] + 1) % 5
        same = (critic(seen, other) == values).flatten(0, 1).flatten(2).all(-1).all(0)
        assert same.tolist() == [j == i for j in range(3)]
    moved = seen.clone()
    moved[..., 0, :] += 1
    assert (critic(moved, action) != values).flatten(3).any(-1).all()
