"""TorchRL's `DiscreteSACLoss` on the transitions of a rollout."""

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import OneHotCategorical, ProbabilisticActor
from torchrl.objectives import DiscreteSACLoss, ValueEstimators

from marl_framework.algorithms.rollout import Rollout
from marl_framework.algorithms.sac import SAC


class FirstChannels(nn.Module):
    """A network of maps [B, C, X, Y] for [..., C', X, Y], of which it sees the first C."""

    def __init__(self, network: nn.Module, channels: int) -> None:
        super().__init__()
        self.network, self.channels = network, channels

    def forward(self, maps: Tensor) -> Tensor:
        seen = maps[..., : self.channels, :, :]
        values: Tensor = self.network(seen.flatten(0, -4)).unflatten(0, seen.shape[:-3])
        return values


def losses_of_torchrl(team: SAC, rollout: Rollout, gamma: float, share: float) -> TensorDict:
    """Losses for one-step targets, all actions allowed; the target critics are the critics."""
    maps = torch.cat((rollout.observations, rollout.critic_maps), dim=3)
    after = maps.roll(-1, 0)  # what follows the end does not count
    done = torch.zeros(*rollout.actions.shape, 1, dtype=torch.bool)
    done[-1] = True
    rewards = rollout.rewards[..., None, None].expand(done.shape)
    number = rollout.actions.numel()
    following = {"maps": after, "reward": rewards, "done": done, "terminated": done}
    flat = {name: value.flatten(0, 2) for name, value in following.items()}
    data = TensorDict(
        {
            "maps": maps.flatten(0, 2),
            "action": nn.functional.one_hot(rollout.actions.flatten(), team.sizes.num_actions),
            "next": TensorDict(flat, [number]),
        },
        [number],
    )
    actor = FirstChannels(team.actor, team.sizes.actor_channels)
    policy = ProbabilisticActor(
        TensorDictModule(actor, ["maps"], ["logits"]),
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=OneHotCategorical,
    )
    critics = [TensorDictModule(c, ["maps"], ["action_value"]) for c in team.critic.critics]
    loss = DiscreteSACLoss(
        policy,
        critics[0],
        action_space="one-hot",
        num_actions=team.sizes.num_actions,
        loss_function="l2",
        alpha_init=float(team.temperature.value),
        target_entropy_weight=share,
    )
    for k, critic in enumerate(critics):
        weights = TensorDict.from_module(critic).data
        for stacked in (loss.qvalue_network_params, loss.target_qvalue_network_params):
            stacked.data[k].update_(weights)
    loss.make_value_estimator(ValueEstimators.TD0, gamma=gamma)
    found = loss(data)
    found["log_alpha"] = loss.log_alpha.detach()
    return found.detach()
