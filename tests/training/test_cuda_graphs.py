"""Whole episodes and updates as graphs: the same training, recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from marl_framework.algorithms import graphs as graphs_module
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.algorithms.graphs import Graphs, make_graphs, uses_graphs
from marl_framework.algorithms.rollout import Algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.device import Lack
from marl_framework.mission import environment as environment_module
from marl_framework.mission.state import MissionState
from marl_framework.mission.terrains import mixture
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.stage_timer import StageTimer
from marl_framework.training import trainer as trainer_module
from marl_framework.training.trainer import Trainer
from tests.small import small_config
from tests.soaking import in_soak
from tests.tape import HostReadError, Tape, TapeBackend

CPU = torch.device("cpu")
STEPS = 6
PLAIN = {
    "learning": {
        "symmetries": True,
        "kl_limit": 5e-3,
        "advantage": "return",
        "copy_rate": 3,
        "critic": {"learning_rate": 3e-3},
        "actor": {"learning_rate": 1e-2},
    }
}
OTHER = {
    "compute": {"precision": "bfloat16"},
    "learning": {
        "micro_batch": 6,
        "update_interval": 2,
        "normalize_advantages": True,
        "clip_ratio": 0.2,
        "entropy_coefficient": 0.01,
        "target_update_mode": "soft",
    },
    "observation": {"uncertainty": True, "centred_entropy": True, "global_uncertainty": True},
    "sensor": {
        "pixel": {"number_x": 12, "number_y": 12},
        "simulation": {
            "kinds": ("mixed", "raster"),
            "raster": {"path": "matplotlib:jacksboro_fault_dem.npz", "resolution": 1.0},
        },
    },
    "uav": {
        "communication_range": (0.0, 15.0, 25.0, 100.0),
        "failure_rate": 0.2,
        "crash_rate": 0.1,
    },
}


MAPPO = {
    "experiment": {"algorithm": "mappo"},
    "learning": {"clip_ratio": 0.2, "normalize_advantages": True, "symmetries": True},
}
SAC = {
    "experiment": {"algorithm": "sac"},
    "learning": {"replay_size": 100, "symmetries": True},
}
QMIX = {
    "experiment": {"algorithm": "qmix"},
    "learning": {"replay_size": 100, "symmetries": True, "copy_rate": 3},
}
SETTINGS = {"plain": PLAIN, "other": OTHER, "mappo": MAPPO, "sac": SAC, "qmix": QMIX}


@pytest.fixture(autouse=True)
def _random_words_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw by an operator, which a tape can record, and build terrains without reading back."""

    def random_words(words: Tensor, generator: torch.Generator) -> None:
        words.random_(-(2**63), None, generator=generator)

    monkeypatch.setattr(environment_module, "random_words", random_words)
    monkeypatch.setattr(mixture, "may_read", lambda kind: False)


def config(settings: dict[str, Any]) -> Config:
    schedule = {"training_steps": 2 * STEPS, "use_eps": True, "eps_anneal_phase": 40}
    batches = {"data_passes": 2, "batch_size": 16, "batch_number": 2, "lr_decay": 0.1}
    learning = {**schedule, **batches, **settings["learning"]}
    compute = {"compile": False, **settings.get("compute", {})}
    sections = {**settings, "learning": learning, "compute": compute}
    return small_config(agents=2, budget=3, **sections)


def trainer(made: Config, monkeypatch: pytest.MonkeyPatch, backend: TapeBackend | None) -> Trainer:
    """A trainer whose graphs are on tape; None = without graphs."""
    found = None if backend is None else Graphs(CPU, backend)
    monkeypatch.setattr(trainer_module, "make_graphs", lambda *_: found)
    return Trainer(made, CPU)


def train(team: Trainer, steps: int = STEPS, recording: bool = True) -> list[dict[str, Tensor]]:
    """What each stretch of training steps reports."""
    reports, timer = [], StageTimer(CPU)
    for _ in range(steps):
        stats, counts = team.make_steps(timer)
        reports.append({k: torch.as_tensor(v) for k, v in {**stats, **counts}.items()})
        if not recording and team.algorithm._graphs is not None:
            team.algorithm._graphs.forget()
    return reports


def weights(team: Algorithm) -> dict[str, Tensor]:
    modules = team.modules.items()
    return {f"{n}.{k}": v for n, net in modules for k, v in net.state_dict().items()}


@cache
def eager(name: str) -> tuple[list[dict[str, Tensor]], Trainer]:
    """A training that never replays what was recorded: its reports, and what it became."""
    with pytest.MonkeyPatch.context() as patch:
        team = trainer(config(SETTINGS[name]), patch, TapeBackend())
    return train(team, recording=False), team


def same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["plain", "sac", *in_soak("other", "mappo", "qmix")])
def test_replayed_training_steps_are_the_eager_ones_bit_for_bit(name, monkeypatch) -> None:
    backend, (expected, unrecorded) = TapeBackend(), eager(name)
    team = trainer(config(SETTINGS[name]), monkeypatch, backend)
    found = train(team, 4)
    before = [{k: v.clone() for k, v in report.items()} for report in found]
    found += train(team, STEPS - 4)
    same(found[:4], before)  # what was reported is not overwritten
    assert backend.captures == 2  # episodes, updates
    assert backend.replays == 2 * (STEPS - 2)
    same(found, expected)
    same(weights(team.algorithm), weights(unrecorded.algorithm))
    assert torch.equal(team.task.generator.get_state(), unrecorded.task.generator.get_state())
    assert len({float(report["epsilon"]) for report in found}) >= 5
    assert len({float(report["learning_rate_factor"]) for report in found}) == STEPS
    if name == "plain":
        halted = {float(report["kl_halted"]) for report in found[2:]}
        assert halted - {0.0, 1.0}, "the limit should hold back some of the updates"


def test_graphs_change_nothing_but_the_last_bit_of_the_learning_rates(monkeypatch) -> None:
    made = config({"learning": {**PLAIN["learning"], "kl_limit": 0}})
    found, expected = (
        (train(team, 4), weights(team.algorithm))
        for team in (trainer(made, monkeypatch, b) for b in (TapeBackend(), None))
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_a_shorter_last_stretch_is_flown_too(monkeypatch) -> None:
    made = config({"learning": {**PLAIN["learning"], "training_steps": 7, "update_interval": 2}})
    counted, backend = [], TapeBackend()
    for recording in (True, False):
        team = trainer(made, monkeypatch, backend)
        reports = train(team, 4, recording)  # 2, 2, 2 and 1 of 7
        assert team.algorithm.training_steps == 7
        counted.append((reports, weights(team.algorithm)))
    same(*counted)
    assert backend.replays == 2


def test_episodes_and_updates_in_each_area_are_recorded_once(monkeypatch) -> None:
    area = ({"x_dim": 30.0, "y_dim": 30.0}, {"x_dim": 40.0, "y_dim": 20.0, "budget": 5})
    seen = {"window": 5, "other_actions": False, "centred_other_actions": True}
    settings = PLAIN | {"environment": {"area": area}, "observation": seen}
    found, captures = [], []
    for recording in (True, False):
        backend = TapeBackend()
        team = trainer(config(settings), monkeypatch, backend)
        visits = [team.draw_area(step) for step in range(12)]
        found.append((train(team, 12, recording), weights(team.algorithm)))
        captures.append(backend.captures)
    assert min(visits.count(0), visits.count(1)) > 3
    assert captures == [4, 0]  # episodes and updates, in both areas
    same(*found)


def test_another_rollout_or_generator_is_recorded_anew() -> None:
    backend = TapeBackend()
    graphs = Graphs(CPU, backend)
    owners = [torch.zeros(()), torch.ones(())]
    generator = torch.Generator()

    def ask(owner: Tensor, number: float, generator: torch.Generator | None = None) -> float:
        return float(graphs.run("sum", owner, lambda n: owner + n, number, generator))

    assert [ask(owners[0], n) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert [ask(owners[1], n) for n in (1, 2, 3, 4)] == [2, 3, 4, 5]
    assert [ask(owners[1], n, generator) for n in (1, 2, 3)] == [2, 3, 4]
    assert backend.captures == 3
    graphs.forget()
    assert ask(owners[1], 1, generator) == 2
    assert backend.replays == 2 + 2 + 1


def reads_the_host(state: MissionState, actions: Tensor, utility: Any) -> Tensor:
    scale = 22.0 if utility.relative.sum().item() < 1e9 else 0.0
    return scale * utility.relative - 0.5


def test_what_cannot_be_recorded_runs_eagerly_with_one_warning(monkeypatch) -> None:
    backend, (expected, _) = TapeBackend(), eager("plain")
    reward = {"reward": {"function": f"{__name__}.reads_the_host"}}
    team = trainer(config(PLAIN | {"experiment": reward}), monkeypatch, backend)
    with pytest.warns(RuntimeWarning, match=r"compute\.cuda_graphs") as issued:
        found = train(team)
    assert (len(issued), backend.captures) == (1, 0)
    same(found, expected)


def saved_by(team: Trainer, folder: Path) -> dict[str, Any]:
    train(team, 3)
    save_checkpoint(folder / "state.pt", team.algorithm.state_dict())
    return load_checkpoint(folder / "state.pt")


def rates_of(coma: COMAWrapper) -> list[Any]:
    optimizers = (coma.actor_optimizer, coma.critic_optimizer)
    return [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]


def test_a_checkpoint_of_graphs_goes_on_without_them(monkeypatch, tmp_path) -> None:
    made = config(PLAIN)
    state = saved_by(trainer(made, monkeypatch, TapeBackend()), tmp_path)
    team = trainer(made, monkeypatch, None)
    team.algorithm.load_state_dict(deepcopy(state))
    assert rates_of(team.algorithm) == [1e-2, 3e-3]
    assert not team.algorithm.actor_optimizer.param_groups[0]["capturable"]
    train(team, 1)


@pytest.mark.parametrize("graphs", [False, True])
def test_what_was_recorded_before_a_checkpoint_is_loaded_is_forgotten(
    graphs, monkeypatch, tmp_path
) -> None:
    made = config(PLAIN)
    state = saved_by(trainer(made, monkeypatch, TapeBackend() if graphs else None), tmp_path)
    ends = []
    for recording in (True, False):
        team = trainer(made, monkeypatch, TapeBackend())
        train(team, 3, recording)
        team.algorithm.load_state_dict(deepcopy(state))
        assert torch.stack(rates_of(team.algorithm)).tolist() == pytest.approx([1e-2, 3e-3])
        assert team.algorithm.actor_optimizer.param_groups[0]["capturable"]
        ends.append((train(team, 3, recording), weights(team.algorithm)))
    same(*ends)


BLOCKED = [
    ({"compute": {"precision": "float16"}}, 1, "float16"),
    ({"learning": {"teacher": {"run": "team", "weight": 1}}}, 1, r"learning\.teacher"),
    ({}, 2, "ranks"),
]
GPU = torch.device("cuda", 0)


def asked(choice: bool | str, settings: dict[str, Any]) -> Config:
    compute = {"precision": "float32", **settings.get("compute", {}), "cuda_graphs": choice}
    return small_config(**{**settings, "compute": compute})


def test_a_cpu_needs_no_graphs() -> None:
    assert make_graphs(asked(True, BLOCKED[0][0]), CPU) is None


@pytest.mark.parametrize(("settings", "ranks", "reason"), BLOCKED)
def test_what_cannot_work_is_refused_or_left_alone(settings, ranks, reason, monkeypatch) -> None:
    monkeypatch.setattr(graphs_module, "number_of_ranks", lambda: ranks)
    with pytest.raises(ConfigError, match=rf"^compute\.cuda_graphs\b.*{reason}"):
        uses_graphs(asked(True, settings), GPU)
    monkeypatch.setattr(graphs_module, "triton_lacks", lambda device: None)
    for choice in (False, "auto"):
        assert not uses_graphs(asked(choice, settings), GPU)


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ({}, True),
        ({"experiment": {"reward": {"function": "own.reward"}}}, False),
        ({"sensor": {"simulation": {"kinds": ("split", "own.Hills")}}}, False),
        ({"networks": {"critic": {"type": "own.Critic"}}}, False),
    ],
)
def test_custom_parts_are_recorded_only_if_asked(settings, recorded, monkeypatch) -> None:
    monkeypatch.setattr(graphs_module, "triton_lacks", lambda device: None)
    assert uses_graphs(asked(True, settings), GPU)
    assert uses_graphs(asked("auto", settings), GPU) is recorded
    monkeypatch.setattr(graphs_module, "triton_lacks", lambda device: Lack("", ""))
    assert uses_graphs(asked(True, settings), GPU)
    assert not uses_graphs(asked("auto", settings), GPU)


def test_the_tape_records_without_a_trace_and_replays_into_the_same_memory() -> None:
    total, weight = torch.zeros(2), torch.ones(2, requires_grad=True)
    generator = torch.Generator()

    def function() -> Tensor:
        weight.grad = None
        noise = torch.rand(2, generator=generator)
        (weight * (noise + 1)).sum().backward()
        total[0] += 1
        return total + noise

    expected = torch.rand(3, 2, generator=generator.manual_seed(1))
    result, replay = TapeBackend().capture(function, generator.manual_seed(1))
    gradient = weight.grad
    assert torch.equal(total, torch.zeros(2))
    for i in range(3):
        replay()
        assert torch.equal(result, torch.tensor([i + 1.0, 0.0]) + expected[i])
        assert torch.equal(gradient, expected[i] + 1)
    assert weight.grad is gradient


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.item(),
        lambda x: bool(x.sum()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x + torch.tensor(1.0),
    ],
)
def test_the_tape_notices_the_host(function: Callable[[Tensor], object]) -> None:
    with pytest.raises(HostReadError), Tape():
        function(torch.ones(1))


def flown(made: Config) -> tuple[list[dict[str, Tensor]], Trainer]:
    team, reports = Trainer(made, torch.device("cuda", 0)), []
    try:
        for number in range(STEPS):
            if made.compute.cuda_graphs and number > 2:  # recorded: nothing waits any more
                torch.cuda.set_sync_debug_mode("error")
            reports += train(team, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [{k: v.cpu() for k, v in report.items()} for report in reports], team


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_graphs_on_a_gpu_change_no_training_and_wait_for_nothing(settings: dict[str, Any]) -> None:
    free = {**settings, "learning": {**settings["learning"], "kl_limit": 0}}
    calm = {**settings.get("compute", {}), "tf32": False, "cudnn_benchmark": False}
    (expected, _), (found, team) = (
        flown(config({**free, "compute": {**calm, "cuda_graphs": graphs}}))
        for graphs in (False, True)
    )
    assert team.algorithm._graphs is not None
    recordings = list(team.algorithm._graphs._recordings.values())
    assert [known.replay is not None for known in recordings] == [True, True]
    assert all(value.isfinite().all() for report in found for value in report.values())
    # Two eager steps and two replayed ones; later on rounding tells trainings apart.
    torch.testing.assert_close(found[:4], expected[:4], rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_a_failed_recording_on_a_gpu_harms_nothing() -> None:
    device = torch.device("cuda", 0)
    graphs, generator = Graphs(device), torch.Generator(device)

    def function(number: Tensor) -> Tensor:
        drawn = torch.rand(3, generator=generator, device=device)
        return drawn * (number + 0 * number.item())

    with pytest.warns(RuntimeWarning, match=r"compute\.cuda_graphs"):
        found = [graphs.run("host", graphs, function, 1.0, generator) for _ in range(5)]
    generator.manual_seed(generator.initial_seed())
    expected = [torch.rand(3, generator=generator, device=device) for _ in range(5)]
    same(found, expected)
