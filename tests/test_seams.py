"""Parts from outside, and algorithms other than COMA, train, resume, fly and are exported."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from marl_framework import evaluate, export
from marl_framework.config.loading import load_config
from marl_framework.config.parts import ALGORITHMS, NETWORKS, PLANNERS, SENSORS, TERRAINS
from marl_framework.main import main
from marl_framework.networks.registry import _varies
from marl_framework.planners.team import find_checkpoint

MODULE = '''
import torch
from torch import nn

from marl_framework.algorithms.coma import COMAWrapper


class Chessboard:
    """Region of interest in every other square of a board with a random offset."""

    def __init__(self, config, device, split):
        self.rows, self.cols = (torch.arange(n, device=device) for n in config.geometry.map_shape)

    def draw(self, num, generator):
        return torch.randint(20, (num, 2), generator=generator, device=self.rows.device)

    def build(self, draws):
        x = (self.rows + draws[:, :1]) // 10 % 2
        y = (self.cols + draws[:, 1:]) // 10 % 2
        return (x[:, :, None] == y[:, None, :])


class Cautious:
    """Misses more than it invents."""

    def __init__(self, config):
        pass

    def miss(self, altitude):
        return 0.02 * altitude

    def false_alarm(self, altitude):
        return 0.01 * altitude


class Pooled(nn.Module):
    """Mean of each map, then two linear layers."""

    def __init__(self, channels, shape, outputs, settings):
        super().__init__()
        self.hidden = nn.Linear(channels, settings.hidden_dim)
        self.out = nn.Linear(settings.hidden_dim, outputs)

    def forward(self, maps):
        return self.out(self.hidden(maps.mean((-2, -1))).relu()).float()


class Forgetful(Pooled):
    """Draws at random what it sees."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.noise = nn.Dropout(0.1)


class Deaf(Pooled):
    """Learns nothing."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.requires_grad_(False)


class Wide(Pooled):
    """Says one thing too much."""

    def __init__(self, channels, shape, outputs, settings):
        super().__init__(channels, shape, outputs + 1, settings)


class Lost(Pooled):
    """Expects more channels than there are."""

    def __init__(self, channels, *sizes):
        super().__init__(channels + 1, *sizes)


class Spectral(Pooled):
    """Makes complex numbers, which PyTorch has none of in bfloat16."""

    def forward(self, maps):
        return super().forward(torch.complex(maps, maps).abs())


class Endless(Pooled):
    """Makes what is not a number."""

    def forward(self, maps):
        return super().forward(maps) / 0


class Detached(Pooled):
    """Hides what it knows from learning."""

    def forward(self, maps):
        return super().forward(maps).detach()


class Measured(Pooled):
    """Reads its weights when it is made."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.scale = 1 + 0 * max(weights.max().item() for weights in self.parameters())


class Lazy(torch.nn.Module):
    """Learns its sizes when it first sees maps."""

    def __init__(self, channels, shape, outputs, settings):
        super().__init__()
        self.head = torch.nn.LazyLinear(outputs)

    def forward(self, maps):
        return self.head(maps.flatten(1))


class Sharing(Pooled):
    """Has a layer that others have, too."""

    layer = torch.nn.Linear(1, 1)

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.shared = self.layer

    def forward(self, maps):
        return super().forward(maps) + 0 * self.shared(maps[:, :1, 0, :1].flatten(1))


class Peeking(Pooled):
    """Reads a value, which tensors without any do not have."""

    def forward(self, maps):
        return super().forward(maps) * (1.0 if maps.sum().item() < 1e9 else 0.0)


class Frozen(Pooled):
    """Learns its last layer alone."""

    independent_rows = True

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


class Silent(Reinforce):
    def update(self, *arguments):
        super().update(*arguments)


class Flat(Reinforce):
    def act(self, observation):
        return super().act(observation).flatten(0, 1)


class Restless(Reinforce):
    def act(self, observation):
        return super().act(observation) / 0


class Forgetting(Reinforce):
    def state_dict(self):
        return {"training_step": self.training_steps}


class Unwritten(Reinforce):
    def state_dict(self):
        return {**super().state_dict(), "self": self}


class Nowhere:
    """Ground without a region of interest."""

    def __init__(self, config, device, split):
        self.shape = config.geometry.map_shape

    def draw(self, num, generator):
        return torch.zeros(num, 1)

    def build(self, draws):
        return torch.zeros(len(draws), *self.shape, dtype=torch.bool)
'''
PARTS = {
    "algorithm": ["experiment.algorithm=outside.Reinforce"],
    "network": ["networks.actor.type=outside.Pooled", "networks.critic.type=outside.Pooled"],
    "sensor": ["sensor.model.type=outside.Cautious"],
    "terrain": ["sensor.simulation.kinds=[outside.Chessboard]"],
}
ROLES = ("actor", "critic")
FIXED = ("hidden", "unused")  # layers of Frozen
PARTS["all"] = [setting for settings in PARTS.values() for setting in settings]
ATTENTION = {
    "attention": [
        "observation.heard_uavs=true",
        *(f"networks.{role}.type=attention" for role in ROLES),
    ]
}
OTHER_ALGORITHMS = {
    name: [f"experiment.algorithm={name}", "learning.clip_ratio=0.2"]
    for name in ALGORITHMS
    if name != "coma"
}


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "outside", raising=False)


def train(name: str, *settings: str) -> int:
    options = [part for setting in settings for part in ("--set", setting)]
    return main(["--config", "params_test", "--device", "cpu", "--run-name", name, *options])


def checksum(name: str) -> str:
    text = json.loads(Path(f"runs/{name}/summary.json").read_text(encoding="utf-8"))
    found: str = text["results"]["weights_sha256"]
    return found


@pytest.mark.parametrize("part", [*PARTS, *ATTENTION, *OTHER_ALGORITHMS])
def test_a_part_trains_resumes_flies_and_is_exported(part: str) -> None:
    settings = [*(PARTS | ATTENTION | OTHER_ALGORITHMS)[part], "learning.actor.learning_rate=0.01"]
    assert train("whole", *settings) == 0
    assert train("halves", *settings, "learning.training_steps=2") == 0
    assert (
        main(
            [
                *("--config", "params_test", "--device", "cpu", "--run-name", "halves", "--resume"),
                *("--allow-changed", "learning.training_steps"),
                *(part for setting in settings for part in ("--set", setting)),
            ]
        )
        == 0
    )
    assert checksum("halves") == checksum("whole")
    weights = find_checkpoint("runs/whole").payload["actor"]
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    options = ["--policies", "learned,random", "--missions", "2", "--no-figures", "--out", "flown"]
    assert evaluate.main(["--checkpoint", "runs/whole", *options]) == 0
    assert export.main(["--checkpoint", "runs/whole", "--format", "torch", "--out", "a.pt2"]) == 0


def test_what_an_algorithm_lacks_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("bad", "experiment.algorithm=outside.Speechless") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "experiment.algorithm: outside.Speechless lacks act, update" in error
    assert train("bad", "experiment.algorithm=outside.Unstepped") == 2
    assert "outside.Unstepped lacks precision, training_steps;" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Uncounted", "update must make training_steps 1 now, not 0"),
        ("Silent", "update must return a dict of scalars"),
        ("Flat", "act must return logits [2, 3, 6] of observations [2, 3, "),
        ("Restless", "act returns logits that are not finite"),
        ("Forgetting", "state_dict must return a dict that holds `actor`"),
        ("Unwritten", ": state_dict()['self'] is a Unwritten"),
    ],
)
def test_what_an_algorithm_does_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], name: str, wrong: str
) -> None:
    assert train("bad", f"experiment.algorithm=outside.{name}") == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith(f"error: experiment.algorithm: outside.{name}")
    assert wrong in error


@pytest.mark.parametrize("name", ["Measured", "Lazy", "Sharing"])
def test_networks_that_need_values_to_be_made_are_trained(name: str) -> None:
    assert train("made", *(f"networks.{role}.type=outside.{name}" for role in ROLES)) == 0


def test_a_network_that_cannot_be_exported_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("whole", "networks.actor.type=outside.Peeking") == 0
    capsys.readouterr()
    assert export.main(["--checkpoint", "runs/whole", "--format", "torch", "--out", "a.pt2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "torch.export cannot follow the actor, Peeking: " in error
    assert not Path("a.pt2").exists()


def test_missions_without_a_region_of_interest_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = "sensor.simulation.kinds=[outside.Nowhere]"
    assert train("none", nowhere) == 0
    told = "missions have no region of interest"
    assert capsys.readouterr().err.count(told) == 1
    options = ["--policies", "random", "--missions", "3", "--no-figures", "--out", "flown"]
    options += ["--set", nowhere, "--set", "compute.device=cpu"]
    assert evaluate.main(["--config", "params_test.yaml", *options]) == 0
    assert f"warning: 3 of 3 {told}" in capsys.readouterr().err


def test_metrics_of_an_algorithm_of_ones_own_are_logged() -> None:
    assert train("own", *PARTS["algorithm"]) == 0
    log = EventAccumulator("runs/own/tensorboard").Reload()
    assert [event.step for event in log.Scalars("algorithm/mean_return")] == [1, 2, 3, 4]


def test_a_network_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("bad", "networks.actor.type=outside.Chessboard") == 2
    assert "networks.actor.type: outside.Chessboard" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Forgetful", "outside.Forgetful has Dropout in noise, which acts otherwise than it"),
        ("Deaf", "outside.Deaf has no parameter that learns"),
        ("Wide", "outside.Wide must make outputs [2, 6] of observations [2, "),
        ("Lost", "outside.Lost fails on observations [2, "),
        ("Endless", "outside.Endless makes outputs of observations of 0 that are not finite"),
        ("Detached", "outside.Detached makes outputs without a gradient"),
    ],
)
def test_a_network_that_will_not_do_is_one_line(
    capsys: pytest.CaptureFixture[str], name: str, wrong: str
) -> None:
    assert train("bad", f"networks.critic.type=outside.{name}") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"networks.critic.type: {wrong}" in error


def test_a_network_that_cannot_take_the_precision_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spectral = "networks.critic.type=outside.Spectral"
    assert train("bad", spectral, "compute.precision=bfloat16") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(r"outside.Spectral fails on observations \[2, .*\] of bfloat16: ", error)
    assert train("good", spectral, "compute.precision=float32") == 0


@pytest.mark.parametrize(
    ("layer", "varies"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout(0.1).eval(), False),
        (nn.BatchNorm2d(3), True),
        (nn.BatchNorm2d(3).eval(), False),
        (nn.BatchNorm2d(3, track_running_stats=False).eval(), True),
        (nn.InstanceNorm2d(3), False),
        (nn.InstanceNorm2d(3, track_running_stats=True), True),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5), True),
        (nn.MultiheadAttention(4, 2, dropout=0.5), True),
        (nn.TransformerEncoderLayer(4, 2, dropout=0.0), False),
        (nn.RReLU(), True),
        (nn.LayerNorm(3), False),
    ],
    ids=str,
)
def test_layers_that_vary_are_told_from_those_that_do_not(layer: nn.Module, varies: bool) -> None:
    assert any(_varies(part) for part in layer.modules()) is varies


def test_a_network_may_read_values() -> None:
    """On a CPU; what is measured without values, such as memory, leaves it out."""
    assert train("peek", "networks.actor.type=outside.Peeking", "learning.training_steps=1") == 0


def test_parameters_that_are_frozen_or_unused_stay_as_they_are() -> None:
    settings = ["networks.actor.type=outside.Frozen", "learning.actor.learning_rate=0.01"]
    assert train("own", *settings) == 0
    actor = find_checkpoint("runs/own").payload["actor"]
    unchanged = {name for name, weights in actor.items() if (weights == 0.1).all()}
    assert unchanged == {f"{part}.{kind}" for part in FIXED for kind in ("weight", "bias")}


@pytest.mark.parametrize("table", [ALGORITHMS, NETWORKS, PLANNERS, SENSORS, TERRAINS])
def test_every_built_in_part_is_where_its_name_says(table: dict[str, str]) -> None:
    for path in table.values():
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_defaults_are_built_in_parts() -> None:
    config = load_config("params.yaml")
    assert config.experiment.algorithm in ALGORITHMS
    assert {config.networks.actor.type, config.networks.critic.type} <= set(NETWORKS)
    assert config.sensor.model.type in SENSORS
