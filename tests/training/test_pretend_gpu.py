"""On a GPU that computes on the CPU, training gives the CPU's bits and keeps a GPU's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from benchmarks.helpers.pretend_gpu import (
    GPU,
    Generator,
    HostReadError,
    MixedDevicesError,
    PretendGpu,
    pretend_gpu,
)
from marl_framework.algorithms import optimisers
from marl_framework.algorithms.optimisers import make_adam, set_rate
from marl_framework.algorithms.rollout import draw_one_by_one
from marl_framework.config.loading import load_config
from marl_framework.config.model import Config
from marl_framework.kernels import maps, versions, windows
from marl_framework.kernels.maps import ActorInputs, CriticInputs
from marl_framework.kernels.policies import Choice
from marl_framework.kernels.versions import Version, load
from marl_framework.kernels.windows import window_bits
from marl_framework.mission import environment
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations import task
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.training.trainer import Trainer
from tests.soaking import in_soak

CPU = torch.device("cpu")
SMALL = (
    "environment.num_envs=3",
    "sensor.pixel.number_x=14",
    "sensor.pixel.number_y=14",
    "experiment.constraints.budget=4",
    "networks.actor.conv_channels=8",
    "networks.critic.conv_channels=8",
    "networks.actor.hidden_dim=16",
    "networks.critic.hidden_dim=16",
    "learning.batch_size=30",
    "learning.batch_number=2",
    "evaluation.missions=2",
    "compute.cudnn_benchmark=false",
    # GPUs round rates to float32.
    "learning.actor.learning_rate=0.000244140625",
    "learning.critic.learning_rate=0.000244140625",
    "learning.lr_decay=1",
)


def small(*overrides: str) -> Config:
    return load_config("params_gpu.yaml", [*SMALL, *overrides])


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU draws random bits and adds up norms as a GPU does."""

    def words(tensor: Tensor, generator: torch.Generator) -> None:
        tensor.random_(-(2**63), None, generator=generator)

    monkeypatch.setattr(environment, "random_words", words)
    monkeypatch.setattr(optimisers, "gradient_norm", torch.nn.utils.get_total_norm)


def as_operators(config: Config) -> dict[str, Callable[..., Any]]:
    """Return Triton's operators of missions, computed by the CPU's loops and plain operators."""
    env = MissionEnvironment(config, 1, CPU)
    loops = load("windows", Version.LOOPS)
    builder = ObservationBuilder(config, env.lattice, env.camera)

    def read_windows(truth: Tensor, keys: Tensor, *others: Tensor) -> None:
        _, n, *window = others[-2].shape
        loops.read_windows(truth, window_bits(keys, n, tuple(window)), *others)

    def draw_actor_maps(inputs: Any, *others: Any) -> None:
        builder.actor(cast(Any, ActorInputs(*inputs)), others[-1])

    def draw_critic_maps(inputs: Any, *others: Any) -> None:
        state = CriticInputs(*inputs)
        builder.critic_only(cast(Any, state), state.actions, others[-1])

    def choose_actions(*tensors: Tensor) -> None:
        choice = Choice(*tensors)

        def choose_in_order(choose: Any) -> tuple[Tensor, Tensor]:
            allowed = env.lattice.allowed(choice.positions, choice.moves)
            return env.lattice.choose_in_order(choice.positions, choose, allowed, choice.active)

        task: Any = SimpleNamespace(choose_in_order=choose_in_order)
        draw_one_by_one(task, *choice[:3], *choice[-3:])

    made = (read_windows, draw_actor_maps, draw_critic_maps, choose_actions)
    made = (*made, loops.fuse_own, loops.fuse_global)
    return {operator.__name__: operator for operator in made}


@contextmanager
def kernels_on_the_cpu(operators: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Let the CPU run Triton's kernels, by other operators."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "triton_lacks", lambda _: None)
        for owner, prefix in ((windows, "_"), (maps, ""), (task, "")):
            for name, run in operators.items():
                if hasattr(owner, prefix + name):
                    patch.setattr(owner, prefix + name, run)
        yield


def train(config: Config, device: torch.device) -> tuple[Trainer, dict[str, Tensor]]:
    """Make a training step; return the trainer, and what was flown and learned by name."""
    trainer = Trainer(config, device)
    rollout = trainer.collectors[0].collect(trainer.algorithm.act, 0.1)
    found = rollout.tensors()
    found["targets"] = trainer.algorithm.transitions(rollout).targets
    found |= trainer.algorithm.update(rollout, 0.1, trainer.task.generator)
    found |= dict(trainer.task.state.tensors())
    for name, module in trainer.algorithm.modules.items():
        found |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
    return trainer, found


def assert_same_bits(gpu: PretendGpu, found: dict[str, Tensor], cpu: dict[str, Tensor]) -> None:
    assert found.keys() == cpu.keys()
    with gpu.reads_allowed():
        for name, expected in cpu.items():
            assert found[name].device == GPU, name
            assert found[name].cpu().equal(expected), name


@pytest.mark.parametrize(
    ("precision", "algorithm"),
    [
        ("bfloat16", "coma"),
        ("float32", "mappo"),
        *in_soak(("float32", "coma"), ("float32", "sac"), ("float32", "qmix")),
    ],
)
def test_a_training_step_has_the_bits_of_the_cpu(precision: str, algorithm: str) -> None:
    chosen = (f"compute.precision={precision}", f"experiment.algorithm={algorithm}")
    config = small("compute.compile=false", *chosen)
    _, expected = train(config, CPU)
    gpu = PretendGpu()
    with pretend_gpu(gpu):
        trainer, found = train(config, GPU)
        assert trainer.task.environment.fusion.version is Version.PLAIN
        assert_same_bits(gpu, found, expected)
    assert gpu.operators > 5000


def test_missions_in_kernels_have_the_bits_of_the_cpu() -> None:
    pytest.importorskip("triton")
    config = small("compute.precision=float32")
    operators = as_operators(config)
    with kernels_on_the_cpu(operators):
        _, expected = train(config, CPU)
    gpu = PretendGpu(twins={f"marl_framework.{name}": run for name, run in operators.items()})
    with pretend_gpu(gpu, triton=True):
        trainer, found = train(config, GPU)
        assert trainer.task.environment.fusion.version is Version.TRITON
        assert_same_bits(gpu, found, expected)


def test_a_validation_reads_nothing_back() -> None:
    config = small("compute.compile=false", "compute.precision=float32")
    gpu = PretendGpu()
    with pretend_gpu(gpu):
        found = Trainer(config, GPU).validation.fly()
        with gpu.reads_allowed():
            found = {name: value.cpu() for name, value in found.items()}
    for name, expected in Trainer(config, CPU).validation.fly().items():
        assert found[name].equal(expected), name


# What a GPU does not allow --------------------------------------------------------------------


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": Tensor.item,
    "tolist": Tensor.tolist,
    "numpy": Tensor.numpy,
    "bool": lambda a: bool(a.sum() > 0),
    "if": lambda a: 1 if a.sum() else 0,
    "cpu": Tensor.cpu,
    "to": lambda a: a.to("cpu"),
    "to another's": lambda a: a.to(torch.ones(1)),
    "to by name": lambda a: a.to(device="cpu"),
    "copy": lambda a: torch.zeros(1).copy_(a),
    "assign": lambda a: torch.zeros(1, 1).__setitem__(0, a),
    "nonzero": Tensor.nonzero,
    "mask": lambda a: a[a > 0],
    "equal": lambda a: a.equal(a),
    "unique": torch.unique,
}
MIXES: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda a: a + torch.ones(1),
    "in place": lambda a: a.add_(torch.ones(1)),
    "into": lambda a: torch.ones(1).add_(a),
    "index": lambda a: a[torch.zeros(1, dtype=torch.int64)],
    "concatenate": lambda a: torch.cat((a, torch.ones(1))),
    "where": lambda a: torch.where(torch.ones(1, dtype=torch.bool), a, 0.0),
    "generator": lambda a: a.uniform_(generator=Generator("cpu")),
    "factory": lambda a: torch.rand(1, generator=Generator("cuda"), device="cpu"),
    "other factory": lambda a: torch.rand(1, generator=Generator("cpu"), device="cuda"),
}


def test_a_training_step_copies_nothing_to_the_gpu() -> None:
    gpu = PretendGpu()
    with pretend_gpu(gpu):
        trainer = Trainer(small("compute.compile=false"), GPU)
        before = gpu.uploads
        rollout = trainer.collectors[0].collect(trainer.algorithm.act, 0.1)
        trainer.algorithm.update(rollout, 0.1, trainer.task.generator)
        assert gpu.uploads == before > 10
        torch.tensor([1], device="cuda")
        torch.zeros(1, device="cuda").copy_(torch.ones(1))
        torch.ones(1).to("cuda")
        assert gpu.uploads == before + 3


@pytest.mark.parametrize("name", READS)
def test_every_read_is_an_error_unless_allowed(name: str) -> None:
    gpu = PretendGpu()
    with pretend_gpu(gpu):
        tensor = torch.ones(1, device="cuda")
        with pytest.raises(HostReadError):
            READS[name](tensor)
        with gpu.reads_allowed():
            READS[name](tensor)


@pytest.mark.parametrize("name", MIXES)
def test_devices_never_mix(name: str) -> None:
    with pretend_gpu(PretendGpu()):
        with pytest.raises(MixedDevicesError):
            MIXES[name](torch.ones(1, device="cuda"))
        a = torch.ones(1).to("cuda") * torch.tensor(2.0)  # scalars of the CPU may come
        assert (a.device, a.is_cuda) == (GPU, True)


@pytest.mark.parametrize("recorded", [False, True])
def test_eager_and_recorded_steps_have_the_same_rate(recorded: bool) -> None:
    with pretend_gpu(PretendGpu()) as gpu, gpu.reads_allowed():
        optimizer = make_adam(torch.nn.Linear(1, 1).to(GPU), 3e-4, recorded)
        for rate in (3e-4, 1e-4):
            set_rate(optimizer, rate)
            assert float(optimizer.param_groups[0]["lr"]) == float(torch.tensor(rate))
