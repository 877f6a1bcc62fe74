"""Custom parts, and algorithms other than COMA, train, resume, fly and are exported."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from marl_framework import evaluate, export
from marl_framework.config.errors import ConfigError
from marl_framework.config.parts import ALGORITHMS, NETWORKS, PLANNERS, SENSORS, TERRAINS
from marl_framework.networks.registry import make_actor
from marl_framework.planners.team import find_checkpoint
from tests import custom_parts
from tests.custom_parts import MODULE
from tests.running import results, run_main
from tests.small import small_config
from tests.soaking import in_soak

Refused = Callable[..., str]
ROLES = ("actor", "critic")
PARTS = {
    "algorithm": [f"experiment.algorithm={MODULE}.Reinforce"],
    "network": [f"networks.{role}.type={MODULE}.Pooled" for role in ROLES],
    "sensor": [f"sensor.model.type={MODULE}.Cautious"],
    "terrain": [f"sensor.simulation.kinds=[{MODULE}.Discs]"],
}
PARTS["all"] = [setting for settings in PARTS.values() for setting in settings]
PARTS["attention"] = [
    "observation.heard_uavs=true",
    *(f"networks.{role}.type=attention" for role in ROLES),
]
ELSEWHERE = ("coma", "mappo", "sac")  # in tests/test_resume.py
PARTS |= {name: [f"experiment.algorithm={name}"] for name in ALGORITHMS if name not in ELSEWHERE}
for name in ("isac", "qmix"):
    PARTS[name].append("logging.save_replay=true")
FIRST = ("all", "qmix")
FIXED = ("hidden", "unused")  # layers of Frozen


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(name: str, *settings: str, options: tuple[str, ...] = ()) -> int:
    return run_main(Path(), name, *options, sets=settings)


def checksum(name: str) -> str:
    return results(Path("runs", name))["weights_sha256"]


@pytest.mark.parametrize("part", [*FIRST, *in_soak(*(part for part in PARTS if part not in FIRST))])
def test_a_part_trains_resumes_flies_and_is_exported(part: str) -> None:
    settings = [*PARTS[part], "learning.actor.learning_rate=0.01"]
    assert train("whole", *settings) == 0
    assert train("halves", *settings, "learning.training_steps=2") == 0
    longer = ("--resume", "--allow-changed", "learning.training_steps")
    assert train("halves", *settings, options=longer) == 0
    assert checksum("halves") == checksum("whole")
    weights = find_checkpoint("runs/whole").payload["actor"]
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    options = ["--policies", "learned,random", "--missions", "2", "--no-figures", "--out", "flown"]
    assert evaluate.main(["--checkpoint", "runs/whole", *options]) == 0
    if part not in ALGORITHMS:  # their actors are the same
        out = ["--format", "torch", "--out", "a.pt2"]
        assert export.main(["--checkpoint", "runs/whole", *out]) == 0
    if part == "algorithm":
        log = EventAccumulator("runs/whole/tensorboard").Reload()
        assert [event.step for event in log.Scalars("algorithm/mean_return")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Speechless", ("act, update",)),
        ("Unstepped", ("precision, training_steps",)),
        ("Uncounted", ("update", "training_steps")),
        ("Silent", ("update", "dict")),
        ("Flattening", ("act", "[2, 3, 6]")),
        ("Crashing", (".act", "ZeroDivisionError in line ", "custom_parts.py")),
        ("Restless", ("act", "finite")),
        ("Forgetting", ("state_dict", "actor")),
        ("Unwritten", ("state_dict", "self")),
    ],
)
def test_what_an_algorithm_does_wrong_is_one_line(refused, name, named) -> None:
    line = refused(train, "bad", f"experiment.algorithm={MODULE}.{name}")
    assert line.startswith(f"error: experiment.algorithm: {MODULE}.{name}")
    assert all(word in line for word in named)


@pytest.mark.parametrize("name", ["Measured", "Lazy", "Sharing"])
def test_networks_that_need_values_to_be_made_are_trained(name: str) -> None:
    assert train("made", *(f"networks.{role}.type={MODULE}.{name}" for role in ROLES)) == 0


def test_a_network_that_cannot_be_exported_is_one_line(refused: Refused) -> None:
    """It is trained, though: on a CPU it may read values, and what has none leaves it out."""
    assert train("whole", f"networks.actor.type={MODULE}.Peeking") == 0
    options = ["--checkpoint", "runs/whole", "--format", "torch", "--out", "a.pt2"]
    assert "actor" in refused(export.main, options)
    assert not Path("a.pt2").exists()


def test_missions_without_a_region_of_interest_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"sensor.simulation.kinds=[{MODULE}.Nowhere]"
    assert train("none", nowhere) == 0
    assert capsys.readouterr().err.count("region of interest") == 1
    options = ["--policies", "random", "--missions", "3", "--no-figures", "--out", "flown"]
    options += ["--set", nowhere, "--set", "compute.device=cpu"]
    assert evaluate.main(["--config", "params_test.yaml", *options]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 3 of 3 ")
    assert "region of interest" in line


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Discs", ""),
        ("Deaf", ""),
        ("Wide", "[2, 6]"),
        ("Lost", "[2, "),
        ("Lost", "RuntimeError in line "),
        ("Endless", "finite"),
        ("Detached", "gradient"),
    ],
)
def test_a_network_that_will_not_do_is_one_line(refused: Refused, name: str, named: str) -> None:
    line = refused(train, "bad", f"networks.critic.type={MODULE}.{name}")
    assert line.startswith(f"error: networks.critic.type: {MODULE}.{name}")
    assert named in line


def test_a_network_that_cannot_take_the_precision_is_one_line(refused: Refused) -> None:
    spectral = f"networks.critic.type={MODULE}.Spectral"
    assert "bfloat16" in refused(train, "bad", spectral, "compute.precision=bfloat16")
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
def test_networks_with_layers_that_vary_are_refused(layer, varies, monkeypatch) -> None:
    monkeypatch.setattr(custom_parts.Holding, "layer", layer)
    config = small_config(networks={"actor": {"type": f"{MODULE}.Holding", "hidden_dim": 8}})
    if varies:
        with pytest.raises(ConfigError, match=r"^networks\.actor\.type: .*Holding .* held"):
            make_actor(config.networks, config.compute, config.network_sizes)
    else:
        make_actor(config.networks, config.compute, config.network_sizes)


def test_parameters_that_are_frozen_or_unused_stay_as_they_are() -> None:
    settings = [f"networks.actor.type={MODULE}.Frozen", "learning.actor.learning_rate=0.01"]
    assert train("own", *settings) == 0
    actor = find_checkpoint("runs/own").payload["actor"]
    unchanged = {name for name, weights in actor.items() if (weights == 0.1).all()}
    assert unchanged == {f"{part}.{kind}" for part in FIXED for kind in ("weight", "bias")}


@pytest.mark.parametrize("table", [ALGORITHMS, NETWORKS, PLANNERS, SENSORS, TERRAINS])
def test_every_built_in_part_is_where_its_name_says(table: dict[str, str]) -> None:
    for path in table.values():
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
