"""All algorithms: losses against a plain loop over samples, inputs, learning and state."""

from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic
from marl_framework.algorithms.ppo import NORMALIZER, PPO, ValueNormalizer
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.algorithms.rollout import Rollout, RolloutCollector
from marl_framework.algorithms.state_values import SomeChannels
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.config.parts import ALGORITHMS
from tests.algorithms.making import ToyGame, make, rollout_on, same, shuffler, uneven_rollout
from tests.soaking import in_soak

GAMMA, LAMBDA, EPSILON = 0.9, 0.7, 0.1
MEAN, DEVIATION = 2.0, 3.0
ONE_UPDATE = {"data_passes": 1, "batch_number": 1, "gamma": GAMMA, "lambda": LAMBDA}
CLIPPED = {"clip_ratio": 0.2, "entropy_coefficient": 0.02}
SOFT = {"target_entropy": 0.05, "lambda": 0.0}
WIDE = {"actor": {"gradient_norm": 1e9}, "critic": {"gradient_norm": 1e9}}


class PlainLosses:
    """Losses of actor and critic from a loop over missions, UAVs and moves.

    Args:
        team: an algorithm with a critic of states; earlier targets of PPO had `MEAN` and
            `DEVIATION`.
        old: its target critic, or its critic before the updates.
        rollout: of the toy game.
    """

    def __init__(self, team: ActorCritic, old: nn.Module, rollout: Rollout) -> None:
        self.team, self.rollout, self.ppo = team, rollout, isinstance(team, PPO)
        policy, values, advantages = [], [], []
        moves, missions, uavs = rollout.actions.shape
        for e, i in product(range(missions), range(uavs)):
            outputs = [self._value(old, t, e, i).detach() for t in range(moves)]
            later = [MEAN + DEVIATION * v for v in outputs] if self.ppo else outputs
            returns = self._returns(rollout.rewards[:, e], later, LAMBDA)
            one_step = not self.ppo and team.learning.advantage == "critic"
            credited = self._returns(rollout.rewards[:, e], later, 0.0) if one_step else returns
            for t in range(moves):
                value = self._value(team.critic, t, e, i)
                advantages.append(credited[t] - (later[t] if self.ppo else value.detach()))
                policy.append((t, e, i))
                values.append((value, outputs[t], returns[t]))
        credit = torch.stack(advantages)
        if team.learning.normalize_advantages:
            credit = (credit - credit.mean()) / (credit.std(correction=0) + 1e-8)
        losses = [self._policy_loss(*pair) for pair in zip(policy, credit, strict=True)]
        self.actor = torch.stack(losses).mean()
        self.critic = torch.stack(self._value_losses(values)).mean()

    def _value(self, critic: nn.Module, t: int, e: int, i: int) -> Tensor:
        """Return V of one state; the toy's critic maps show only the other's action."""
        output: Tensor = critic.network(self.rollout.observations[t, e, i].unsqueeze(0))
        return output[0, 0]

    @staticmethod
    def _returns(rewards: Tensor, values: list[Tensor], lambda_: float) -> list[Tensor]:
        found = [rewards[-1]]
        for t in range(len(values) - 2, -1, -1):
            after = (1 - lambda_) * values[t + 1] + lambda_ * found[0]
            found.insert(0, rewards[t] + GAMMA * after)
        return found

    def _value_losses(self, values: list[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
        if not self.ppo:
            return [(v - goal) ** 2 for v, _, goal in values]
        goals = torch.stack([goal for *_, goal in values]).double()
        mean = (MEAN + goals.mean()) / 2  # of the targets of two training steps
        square = (MEAN**2 + DEVIATION**2 + goals.square().mean()) / 2
        clip, losses = self.team.learning.value_clip, []
        for v, old, goal in values:
            scaled = (goal - mean) / (square - mean**2).sqrt()
            near = old + min(max(v - old, torch.tensor(-clip)), torch.tensor(clip))
            errors = [(each - scaled).abs() for each in (v, near)]  # Huber's loss, corner at 1
            losses.append(max(e**2 / 2 if e <= 1 else e - 0.5 for e in errors))
        return losses

    def _policy_loss(self, at: tuple[int, int, int], advantage: Tensor) -> Tensor:
        rollout = self.rollout
        logits, mask = self.team.actor(rollout.observations[at].unsqueeze(0))[0], rollout.masks[at]
        allowed = [a for a in range(len(mask)) if mask[a]]
        total = sum(logits[a].exp() for a in allowed)
        pi = [(1 - EPSILON) * logits[a].exp() / total + EPSILON / len(allowed) for a in allowed]
        action = int(rollout.actions[at])
        ratio = pi[allowed.index(action)] / rollout.probabilities[at][action]
        clipped = min(max(ratio, torch.tensor(0.8)), torch.tensor(1.2))
        entropy = -sum(p * p.log() for p in pi)
        return -min(ratio * advantage, clipped * advantage) - 0.02 * entropy


def norm(loss: Tensor, network: nn.Module) -> Tensor:
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return torch.stack([gradient.norm() for gradient in gradients]).norm()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iac", {"advantage": "critic"}),
        ("iac", {"advantage": "return"}),
        ("central_v", {"advantage": "critic"}),
        ("central_v", {"advantage": "return"}),
        ("ippo", {"huber_delta": 1.0, "value_clip": 0.05}),
        ("mappo", {"huber_delta": 1.0, "value_clip": 0.05}),
    ],
)
def test_losses_and_gradients_are_those_of_a_loop_over_samples(
    name: str, options: dict[str, Any], normalize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**options, **CLIPPED, **ONE_UPDATE, **WIDE, "normalize_advantages": normalize}
    team, rollout = make(algorithm=name, **options), uneven_rollout()
    if not team.has_target:
        scale = ValueNormalizer()
        scale.update(torch.tensor([MEAN - DEVIATION, MEAN + DEVIATION]))
        team.take_value_scale({NORMALIZER: scale.state_dict()})
    old, flat = deepcopy(team.critic), team.transitions(rollout)
    monkeypatch.setattr(team, "transitions", lambda _: flat)
    with torch.no_grad():  # as after other updates
        for parameter in (*team.actor.parameters(), *team.critic.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=shuffler()))
    plain = PlainLosses(team, old, rollout)
    expected = {
        "actor_loss": plain.actor.detach(),
        "critic_loss": plain.critic.detach(),
        "actor_gradient_norm": norm(plain.actor, team.actor),
        "critic_gradient_norm": norm(plain.critic, team.critic),
    }
    stats = team.update(rollout, EPSILON)
    for key, value in expected.items():
        torch.testing.assert_close(stats[key], value, check_dtype=False, rtol=1e-4, atol=1e-6)
        assert "norm" not in key or value > 1e-3


def test_each_critic_sees_what_its_algorithm_allows() -> None:
    config = load_config("params_test")
    sizes, names = config.network_sizes, config.observation.critic_channels
    maps = torch.rand(1, sizes.critic_channels, *sizes.shape, requires_grad=True)
    seen = {}
    for name in ALGORITHMS:
        chosen = [f"experiment.algorithm={name}", "learning.clip_ratio=0.2"]
        critic = make_algorithm(load_config("params_test", chosen), "cpu").modules["critic"]
        (gradient,) = torch.autograd.grad(critic(maps).sum(), maps)
        used = gradient[0].abs().sum((1, 2)) > 0
        seen[name] = {channel for channel, number in zip(names, used, strict=True) if number}
    own = set(config.observation.actor_channels)
    assert seen["iac"] == seen["ippo"] == seen["isac"] == own
    assert seen["central_v"] == seen["mappo"] == seen["qmix"] == set(names) - {"other_actions"}
    assert seen["coma"] == seen["sac"] == set(names)


def test_channels_keep_their_order() -> None:
    maps = torch.rand(2, 6, 3, 3)
    for seen in ([0, 1, 2], [1, 2, 4], [0, 2, 5], [3], list(range(6))):
        hidden = sorted(set(range(6)) - set(seen))
        assert torch.equal(SomeChannels(nn.Identity(), 6, hidden)(maps), maps[:, seen])


def test_values_are_scaled_by_all_targets_so_far() -> None:
    scale, generator = ValueNormalizer(), torch.Generator().manual_seed(0)
    values = torch.linspace(-1, 1, 5)
    assert torch.equal(scale.normalize(values), values)  # no target is known yet
    seen = [5 + 3 * torch.randn(4, 3, generator=generator) for _ in range(20)]
    for targets in seen:
        scale.update(targets)
    together = torch.cat(seen).flatten()
    expected = (values - together.mean()) / together.std(correction=0)
    torch.testing.assert_close(scale.normalize(values), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(scale.restore(scale.normalize(values)), values)
    before = [buffer.clone() for buffer in scale.buffers()]
    for bad in (float("nan"), float("inf")):
        scale.update(torch.tensor([1.0, bad]))
    assert all(torch.equal(a, b) for a, b in zip(before, scale.buffers(), strict=True))


def test_values_that_hardly_differ_are_not_magnified() -> None:
    scale = ValueNormalizer()
    scale.update(torch.full((8,), 2.0))
    torch.testing.assert_close(scale.normalize(torch.tensor([2.0, 2.1])), torch.tensor([0.0, 1.0]))


def test_without_normalisation_the_critic_learns_the_returns() -> None:
    start = ValueNormalizer().state_dict()
    scaled, plain = (make(algorithm="mappo", value_normalization=on) for on in (True, False))
    for team in (scaled, plain):
        team.update(uneven_rollout(), EPSILON, shuffler())
    assert plain.state_dict()[NORMALIZER] == start
    assert scaled.state_dict()[NORMALIZER] != start
    assert not same(scaled.critic, plain.critic)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("coma", {"advantage": "return"}),
        ("sac", SOFT),
        *in_soak(
            ("mappo", {}),
            ("qmix", {}),
            ("coma", {}),
            ("iac", {}),
            ("central_v", {}),
            ("ippo", {}),
            ("isac", SOFT),
        ),
    ],
)
def test_a_two_by_two_team_game_is_solved(name: str, options: dict[str, Any]) -> None:
    clipped = {} if name == "coma" else CLIPPED
    team = make(algorithm=name, target_update_mode="soft", tau=0.2, **clipped, **options)
    game = ToyGame(32)
    collector = RolloutCollector(game)
    for _ in range(120):
        team.update(collector.collect(team.act, 0.1), 0.1, game.generator)
    final = collector.collect(team.act, 0.0)
    assert final.rewards.mean() > 0.95  # the best is 1; random play gets 0.325


@pytest.mark.parametrize(("size", "normalize"), [(1, True), (3, False), (5, True), (100, True)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_make_the_update_of_the_whole_batch(name, size, normalize) -> None:
    options = {"algorithm": name, **ONE_UPDATE, **CLIPPED, "normalize_advantages": normalize}
    whole, parts = (make(micro_batch=number, **options) for number in (0, size))
    sizes: list[int] = []
    parts.critic.register_forward_hook(
        lambda _, inputs, out: sizes.append(len(out)) if out.requires_grad else None
    )
    stats = [team.update(uneven_rollout(), EPSILON, shuffler()) for team in (whole, parts)]
    if name == "qmix":  # joint moves of two UAVs
        size = max(size // 2 * 2, 2)
    assert max(sizes) == min(size, 12)  # of 12 transitions
    for key in stats[0]:
        torch.testing.assert_close(stats[0][key], stats[1][key], rtol=1e-4, atol=1e-5)
    for network in ("actor", "critic"):
        for one, other in zip(
            whole.modules[network].parameters(), parts.modules[network].parameters(), strict=True
        ):  # gradients: Adam's first step divides them by their size
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("micro_batch", [0, *in_soak(3)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_is_read_back_to_the_host(name: str, micro_batch: int) -> None:
    """The meta device has no values, so that every read raises an error."""
    options = {"kl_limit": 0.01, "normalize_advantages": True, "micro_batch": micro_batch}
    team = make(algorithm=name, device="meta", compute={"device": "auto"}, **options)
    stats = team.update(rollout_on("meta"), EPSILON, steps=2)
    assert {value.device.type for value in stats.values()} == {"meta"}
    assert team.act(torch.empty(3, 2, 2, 3, 3, device="meta")).shape == (3, 2, 2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_loaded_state_continues_bit_for_bit(name: str, tmp_path) -> None:
    team, other = make(algorithm=name), make(algorithm=name, seed=9)
    team.update(uneven_rollout(), EPSILON, shuffler())
    torch.save(team.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (team, other):
        one.update(uneven_rollout(seed=1), EPSILON, shuffler())
    assert other.training_steps == 2
    assert all(same(team.modules[network], other.modules[network]) for network in team.modules)


def test_ppo_without_a_clip_ratio_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^learning\.clip_ratio"):
        make(algorithm="mappo", clip_ratio=0.0)


@pytest.mark.parametrize("key", ["value_clip=0.1", "huber_delta=0", "value_normalization=false"])
def test_keys_of_another_algorithm_are_refused(key: str) -> None:
    for algorithm in ("coma", "iac", "central_v"):
        with pytest.raises(ConfigError, match=rf"learning\.{key.partition('=')[0]} "):
            load_config("params_test", [f"experiment.algorithm={algorithm}", f"learning.{key}"])


@pytest.mark.parametrize("key", ["replay_size=1000", "target_entropy=0.5", "temperature=0.2"])
def test_keys_of_sac_are_refused_for_other_algorithms(key: str) -> None:
    name = key.partition("=")[0]
    others, readers = ["coma", "mappo"], "sac, isac and qmix"
    if name == "target_entropy":
        others, readers = [*others, "qmix"], "sac and isac"
    for algorithm in others:
        with pytest.raises(ConfigError, match=rf"learning\.{name} .*only on {readers};"):
            load_config("params_test", [f"experiment.algorithm={algorithm}", f"learning.{key}"])
