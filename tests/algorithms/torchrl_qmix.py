"""TorchRL's `QMixerLoss` and `QMixer` on the joint moves of a rollout."""

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import QMixer, QValueModule, SafeSequential
from torchrl.objectives import QMixerLoss, ValueEstimators

from marl_framework.algorithms.qmix import QMIX, WIDTH
from marl_framework.algorithms.rollout import Rollout


class _Values(nn.Module):
    def __init__(self, team: QMIX) -> None:
        super().__init__()
        self.actor, self.channels = team.actor, team.sizes.actor_channels
        self.temperature = team.learning.temperature

    def forward(self, maps: Tensor) -> Tensor:
        logits = self.actor(maps[:, :, : self.channels].flatten(0, 1))
        return self.temperature * logits.unflatten(0, maps.shape[:2])


class _Mixer(nn.Module):
    """TorchRL's mixer, whose state are the weights that the team's critic computes."""

    def __init__(self, team: QMIX, uavs: int) -> None:
        super().__init__()
        self.critic = team.critic
        first, rest = uavs * WIDTH, 2 * WIDTH + 1
        self.mixer = QMixer((first + rest,), WIDTH, uavs, "cpu")
        with torch.no_grad():
            for parameter in self.mixer.parameters():
                parameter.zero_()
            start = 0
            for layer in (self.mixer.hyper_w_1, self.mixer.hyper_b_1, self.mixer.hyper_w_final):
                size = layer.out_features
                layer.weight[:, start : start + size] = torch.eye(size)
                start += size
            before, _, after = self.mixer.V
            before.weight[:2, -1] = after.weight[0, :2] = torch.tensor([1.0, -1.0])  # through ReLU

    def forward(self, chosen: Tensor, maps: Tensor) -> Tensor:
        outputs = self.critic(maps.flatten(0, 1)).unflatten(0, maps.shape[:2])
        first, bias, second, value = outputs.split((WIDTH, WIDTH, WIDTH, 1), -1)
        means = (each.mean(1) for each in (bias, second.abs(), value))
        return self.mixer(chosen, torch.cat((first.flatten(1), *means), -1))


def loss_of_torchrl(team: QMIX, rollout: Rollout, gamma: float) -> Tensor:
    """Loss for one-step targets, all actions allowed; the target networks are copies."""
    maps = torch.cat((rollout.observations, rollout.critic_maps), dim=3)
    after = maps.roll(-1, 0)  # what follows the end does not count
    done = torch.zeros(*rollout.rewards.shape, 1, dtype=torch.bool)
    done[-1] = True
    number, uavs = rollout.rewards.numel(), rollout.actions.shape[2]
    following = {
        "maps": after.flatten(0, 1),
        "reward": rollout.rewards.reshape(number, 1),
        **{name: done.view(number, 1) for name in ("done", "terminated")},
    }
    actions = nn.functional.one_hot(rollout.actions.flatten(0, 1), team.sizes.num_actions)
    data = TensorDict(
        {
            "maps": maps.flatten(0, 1),
            "agents": TensorDict({"action": actions}, [number, uavs]),
            "next": TensorDict(following, [number]),
        },
        [number],
    )
    names = [("agents", name) for name in ("action", "action_value", "chosen_action_value")]
    local = SafeSequential(
        TensorDictModule(_Values(team), ["maps"], names[1:2]),
        QValueModule(action_value_key=names[1], out_keys=names, action_space="one-hot"),
    )
    mixer = TensorDictModule(_Mixer(team, uavs), [names[2], "maps"], ["chosen_action_value"])
    loss = QMixerLoss(local, mixer, action_space="one-hot")
    loss.make_value_estimator(ValueEstimators.TD0, gamma=gamma)
    return loss(data)["loss"].detach()
