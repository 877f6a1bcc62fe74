"""Custom parts for tests, good ones and bad ones, named in params files by their dotted paths."""

import torch
from torch import nn

from tests.mission.terrains.small_terrains import Discs

MODULE = __name__
number = 3


class Nowhere(Discs):
    """Ground without a region of interest."""

    def build(self, draws):
        return super().build(draws + 9)


class Shapeless(Discs):
    build = lambda self, draws: draws  # noqa: E731


class Drawless(Discs):
    draw = lambda self, num, generator: [0.5]  # noqa: E731


class Cautious:
    """Misses more than it invents."""

    def __init__(self, config):
        pass

    def miss(self, altitude):
        return 0.02 * altitude

    def false_alarm(self, altitude):
        return 0.01 * altitude


class Blind(Cautious):
    def miss(self, altitude):
        return 0.5

    false_alarm = miss


class Measuring(Discs):
    """Reads a number from its device when it is made."""

    def __init__(self, config, device, split):
        super().__init__(config, device, split)
        self.width = (self.rows[1] - self.rows[0]).item()


class Broken:
    """Any kind of part; it cannot be made."""

    def __init__(self, *arguments):
        self.share = len(arguments) / 0


class Stumbling(Cautious):
    def miss(self, altitude):
        return altitude / 0


class Nothing:
    def __init__(self, *arguments):
        pass


def low(state, actions, utility):
    """A reward for low flights and for the actions of UAV 0."""
    return utility.absolute - state.positions[..., 2].float().mean(1) + 10 * actions[:, 0]


def scalar(state, actions, utility):
    return utility.absolute.mean()


class Hazy(Cautious):
    """Reads its configuration when it is made."""

    def __init__(self, config):
        self.altitudes = config.geometry.altitudes


class Westward:
    """Flies west."""

    name = "westward"

    def __init__(self, environment):
        self.lattice = environment.lattice

    def act(self, state, generator):
        score = -self.lattice.offsets[:, 0].float()
        best = lambda i, mask: score.masked_fill(~mask, -9).argmax(-1)  # noqa: E731
        return self.lattice.choose_in_order(state.positions, best)


class Careless(Westward):
    """Flies west; UAVs that a mission does not have climb."""

    def act(self, state, generator):
        actions, masks = super().act(state, generator)
        return torch.where(state.active, actions, 0), masks


def _returning(change):
    """A planner that flies west and returns its actions and masks in another way."""

    def act(self, state, generator):
        return change(*Westward.act(self, state, generator))

    return type("Returning", (Westward,), {"act": act})


Listed = _returning(lambda actions, masks: [actions, masks])
Alone = _returning(lambda actions, masks: actions)
Talkative = _returning(lambda actions, masks: (actions, masks, None, None, "west"))
Flat = _returning(lambda actions, masks: (actions[:, 0], masks))
Floating = _returning(lambda actions, masks: (actions.float(), masks))
Maskless = _returning(lambda actions, masks: (actions, None))
Narrow = _returning(lambda actions, masks: (actions, masks[..., :2]))
Worded = _returning(lambda actions, masks: (actions, masks, None, "west"))
Beyond = _returning(lambda actions, masks: (actions + 100, masks))
Off = _returning(lambda actions, masks: (torch.zeros_like(actions), masks))  # up, from the top


class Pooled(nn.Module):
    """Mean of each map, then two linear layers."""

    def __init__(self, channels, shape, outputs, settings):
        super().__init__()
        self.hidden = nn.Linear(channels, settings.hidden_dim)
        self.out = nn.Linear(settings.hidden_dim, outputs)

    def forward(self, maps):
        return self.out(self.hidden(maps.mean((-2, -1))).relu()).float()


class Holding(Pooled):
    """Has a layer that tests choose."""

    layer = nn.Identity()

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.held = self.layer


class Deaf(Pooled):
    """Has no trainable parameter."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.requires_grad_(False)


class Wide(Pooled):
    """Has one output too many."""

    def __init__(self, channels, shape, outputs, settings):
        super().__init__(channels, shape, outputs + 1, settings)


class Lost(Pooled):
    """Expects one channel too many."""

    def __init__(self, channels, *sizes):
        super().__init__(channels + 1, *sizes)


class Spectral(Pooled):
    """Makes complex numbers, which PyTorch has none of in bfloat16."""

    def forward(self, maps):
        return super().forward(torch.complex(maps, maps).abs())


def _pooled(change):
    """A network whose outputs are changed, given its inputs."""

    def forward(self, maps):
        return change(Pooled.forward(self, maps), maps)

    return type("Changed", (Pooled,), {"forward": forward})


Endless = _pooled(lambda outputs, maps: outputs / 0)
Detached = _pooled(lambda outputs, maps: outputs.detach())
# Reads a value, which tensors without any do not have.
Peeking = _pooled(lambda outputs, maps: outputs * (1.0 if maps.sum().item() < 1e9 else 0.0))


class Measured(Pooled):
    """Reads its weights when it is made."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.scale = 1 + 0 * max(weights.max().item() for weights in self.parameters())


class Lazy(nn.Module):
    """Learns its sizes when it first sees maps."""

    def __init__(self, channels, shape, outputs, settings):
        super().__init__()
        self.head = nn.LazyLinear(outputs)

    def forward(self, maps):
        return self.head(maps.flatten(1))


class Sharing(Pooled):
    """Shares a layer with others."""

    layer = nn.Linear(1, 1)

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.shared = self.layer

    def forward(self, maps):
        return super().forward(maps) + 0 * self.shared(maps[:, :1, 0, :1].flatten(1))


class Frozen(Pooled):
    """Trains only its last layer."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.unused = nn.Linear(2, 2)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)
        self.hidden.requires_grad_(False)


class Reinforce:
    """Policy gradient with the discounted return and no critic."""

    def __init__(self, config, sizes, device, symmetries, graphs):
        self.device, self.precision = torch.device(device), torch.float32
        settings = config.networks.actor
        self.net = Pooled(sizes.actor_channels, sizes.shape, sizes.num_actions, settings)
        self.modules = {"actor": self.net.to(self.device)}
        self.optimizer = torch.optim.SGD(self.net.parameters(), config.learning.actor.learning_rate)
        self.gamma, self.training_steps = config.learning.gamma, 0

    @torch.no_grad()
    def act(self, observation):
        return self.net(observation.flatten(0, 1)).unflatten(0, observation.shape[:2])

    def update(self, rollout, epsilon, generator=None, steps=1, rate=1.0):
        returns = torch.zeros_like(rollout.rewards)
        after = torch.zeros_like(returns[0])
        for t in reversed(range(len(returns))):
            after = rollout.rewards[t] + self.gamma * after
            returns[t] = after
        weight = (returns - returns.mean()).unsqueeze(-1)
        logits = self.net(rollout.observations.flatten(0, 2)).view_as(rollout.probabilities)
        log = logits.masked_fill(~rollout.masks, -torch.inf).log_softmax(-1)
        chosen = log.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
        loss = -(weight * chosen).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.training_steps += steps
        return {"actor_loss": loss.detach(), "mean_return": returns.mean()}

    def state_dict(self):
        return {
            "actor": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "training_step": self.training_steps,
        }

    def load_state_dict(self, state):
        self.net.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.training_steps = int(state["training_step"])


class Speechless:
    def __init__(self, config, sizes, device, symmetries, graphs):
        self.modules = {}


class Unstepped(Reinforce):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        del self.precision, self.training_steps


class Uncounted(Reinforce):
    def update(self, *arguments):
        done = super().update(*arguments)
        self.training_steps -= 1
        return done


def _reinforce(**methods):
    return type("Changed", (Reinforce,), methods)


Silent = _reinforce(update=lambda self, *given: Reinforce.update(self, *given) and None)
Flattening = _reinforce(act=lambda self, seen: Reinforce.act(self, seen).flatten(0, 1))
Crashing = _reinforce(act=lambda self, seen: 1 / 0)
Restless = _reinforce(act=lambda self, seen: Reinforce.act(self, seen) / 0)
Forgetting = _reinforce(state_dict=lambda self: {"training_step": self.training_steps})
Unwritten = _reinforce(state_dict=lambda self: {**Reinforce.state_dict(self), "self": self})
