from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.training.memory import (
    check_memory,
    device_memory,
    is_out_of_memory,
    layer_outputs,
    memory_advice,
    memory_estimate,
    peak,
)
from marl_framework.training.trainer import Trainer
from tests.running import run_main
from tests.small import config_with
from tests.training.steps import at_step

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize("obstacles", [0, 2])
def test_weights_and_missions_are_what_the_tensors_take(obstacles: int) -> None:
    number = f"experiment.constraints.obstacles.number={obstacles}"
    config = config_with("environment.num_envs=5", number)
    parts = memory_estimate(config)
    trainer = Trainer(config, CPU)
    networks = trainer.algorithm.modules
    a, c = (sum(p.numel() for p in networks[n].parameters()) for n in ("actor", "critic"))
    assert parts["weights"] == 4 * (4 * a + 5 * c)
    env = MissionEnvironment(config, 5, CPU)
    state = env.reset()
    held = sum(v.untyped_storage().nbytes() for _, v in state.tensors())
    bits = 2 * state.readings.numel()
    assert parts["missions"] == held + bits
    channels = len(config.observation.critic_channels)
    assert parts["transitions"] == 5 * 2 * 4 * channels * 11 * 11 * 4


@pytest.mark.parametrize("algorithm", ["iac", "mappo", "qmix"])
def test_the_weights_of_other_algorithms_are_counted(algorithm: str) -> None:
    config = config_with(f"experiment.algorithm={algorithm}", "learning.clip_ratio=0.2")
    modules = make_algorithm(config, CPU).modules
    held = {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}
    learn = held["actor"] + held["critic"]
    targets = sum(number for name, number in held.items() if name.startswith("target_"))
    assert memory_estimate(config)["weights"] == 4 * (4 * learn + targets)


def test_a_replay_takes_the_bytes_of_its_maps() -> None:
    sac = ("experiment.algorithm=sac", "learning.replay_size=3200")
    config = config_with(*sac)
    parts, trainer = memory_estimate(config), Trainer(config, CPU)
    rollout = trainer.collectors[0].collect(trainer.algorithm.act, 0.1)
    maps = rollout.observations.numel() + rollout.critic_maps.numel()
    flown = rollout.actions.numel()
    assert parts["replay"] == 3200 // flown * maps * 4
    assert memory_estimate(config, ranks=2)["replay"] == parts["replay"] // 2
    assert "replay" not in memory_estimate(config_with())
    huge = config_with(sac[0], "learning.replay_size=1000000000")
    with pytest.raises(ConfigError, match=r"^learning\.replay_size="):
        check_memory(huge, CPU)


class Recurrent(nn.Module):
    """A critic with a layer that returns more than one tensor."""

    def __init__(self, channels: int, *_: object) -> None:
        super().__init__()
        self.layer = nn.GRU(channels, 6, batch_first=True)

    def forward(self, maps: Tensor) -> Tensor:
        return self.layer(maps.flatten(2).mT)[0][:, -1]


class Mixed(COMAWrapper):
    """COMA with a network that takes something else than maps."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.modules["mixer"] = nn.Bilinear(3, 3, 100)


def test_recorded_graphs_keep_what_they_need() -> None:
    recorded, eager = (
        memory_estimate(load_config("params_gpu.yaml", [f"compute.cuda_graphs={on}"]), 1, GPU)
        for on in ("true", "false")
    )
    assert recorded == eager | {"graphs": eager["windows"] + eager["activations"]}
    assert peak(recorded) == peak(eager) + recorded["graphs"]
    config = load_config("params_gpu.yaml")
    assert "compute.cuda_graphs=false" in memory_advice(config, recorded, 2**33)


def test_networks_of_any_outputs_and_inputs_are_estimated() -> None:
    plain = memory_estimate(config_with())
    recurrent = memory_estimate(
        config_with("networks.critic.type=tests.training.test_memory.Recurrent")
    )
    assert 0 < recurrent["weights"] < plain["weights"]
    sizes = config_with().network_sizes
    layers = layer_outputs(Recurrent(sizes.critic_channels), "critic", sizes)
    assert layers == [6 * 11 * 11 + 6]  # its outputs and its state
    mixed = memory_estimate(config_with("experiment.algorithm=tests.training.test_memory.Mixed"))
    assert mixed == {**plain, "weights": plain["weights"] + 4 * 4 * (9 * 100 + 100)}


def test_predictions_take_memory_where_no_loop_makes_them() -> None:
    plain, seen = (
        config_with("environment.num_envs=64", f"observation.predicted={word}")
        for word in ("false", "true")
    )
    cells = 64 * seen.missions.most_agents * math.prod(seen.geometry.map_shape)
    assert memory_estimate(seen)["windows"] == 20 * cells > memory_estimate(plain)["windows"]
    assert memory_estimate(seen, 1, CPU)["windows"] == memory_estimate(plain, 1, CPU)["windows"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("environment.num_envs=1048576",),
        ("evaluation.missions=1000000000",),
        ("learning.batch_size=1000000000",),
        ("networks.critic.conv_channels=65536",),
        ("learning.update_interval=100000000", "learning.training_steps=100000000"),
    ],
)
def test_what_can_never_fit_is_refused_by_key(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_memory(config_with(*overrides, "sensor.pixel.number_x=80"), CPU)
    key, _ = overrides[0].split("=")
    assert str(caught.value).startswith(f"{key}=")


def test_an_interval_above_the_training_steps_is_allowed() -> None:
    check_memory(config_with("learning.update_interval=100000000"), CPU)


@pytest.mark.parametrize(
    ("large", "free"),
    [
        (("environment.num_envs=65536",), 2**28),
        (("learning.update_interval=4096", "learning.training_steps=4096"), 2**27),
    ],
)
def test_the_advice_fits(large: tuple[str, ...], free: int) -> None:
    config = config_with(*large)
    assert peak(memory_estimate(config)) > free
    for _ in range(3):  # each time the next largest part
        if peak(memory_estimate(config)) < free:
            break
        change = memory_advice(config, memory_estimate(config), free).partition(" or ")[0]
        assert re.fullmatch(r"[a-z_.]+=\d+", change)
        config = config_with(*large, change)
    assert peak(memory_estimate(config)) < free


def test_the_cpus_memory_respects_a_container(tmp_path: Path) -> None:
    files = meminfo, limit = tmp_path / "meminfo", tmp_path / "max"
    meminfo.write_text("MemTotal:  4000000 kB\nMemAvailable:  3000000 kB\n")
    assert device_memory(CPU, *files) == (3000000 * 1024, 4000000 * 1024)
    for text, expected in (("max", 4000000 * 1024), ("1048576", 1048576)):
        limit.write_text(f"{text}\n")
        assert device_memory(CPU, *files)[1] == expected


def refused_because_of(cause: Exception) -> ConfigError:
    """The error of a custom part whose constructor raised `cause`."""
    error = ConfigError("networks.actor.type")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refused_because_of(torch.OutOfMemoryError("CUDA out of memory.")), True),
        (refused_because_of(ValueError("channels")), False),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(
    error: BaseException, expected: bool
) -> None:
    assert is_out_of_memory(error) is expected


def test_out_of_memory_is_one_line_with_key_and_value(tmp_path, monkeypatch, refused) -> None:
    def fill(_: Trainer) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    monkeypatch.setattr(Trainer, "make_steps", at_step(4, fill))
    error = refused(run_main, tmp_path, "t", code=1)
    assert re.match(r"error: out of memory on (cpu|cuda:0): try --set [a-z_.]+=\d+", error)
    monkeypatch.undo()
    assert run_main(tmp_path, "t", "--resume") == 0  # from the checkpoint of training step 2
