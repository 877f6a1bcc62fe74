"""The map predictor's training: what it learns from, that it learns, and that it resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from marl_framework import predict
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.kernels.cells import entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.networks.map_predictor import PARTS
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.prediction.samples import Samples
from marl_framework.prediction.trainer import PredictorTrainer
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from tests.small import small_config

CPU = torch.device("cpu")
SMALL = {"rounds": 3, "missions": 4, "updates": 20, "batch_size": 32, "width": 8}


def settings(**changed: object) -> Config:
    worlds = [{"kinds": ("split",)}, {"kinds": ("random_field",), "cluster_radius": 3.0}]
    return small_config(prediction={**SMALL, "worlds": tuple(worlds), **changed})


def test_targets_are_the_entropy_that_truly_lies_in_the_region() -> None:
    env = MissionEnvironment(small_config(), 3, "cpu", "test")
    view, state = LatticeView(env.config, env.lattice, PARTS), env.reset()
    target = Samples.of(view, state).target.unflatten(0, (3, 3))
    for e, n in product(range(3), range(3)):
        expected = view.sums(entropy(state.beliefs[e, n]) * state.truth[e])
        torch.testing.assert_close(target[e, n], expected.half(), rtol=2e-3, atol=2e-3)


def test_all_maps_of_a_sample_are_turned_alike_in_eight_ways() -> None:
    coarse = torch.rand(5, 3, 4, 4).half()
    fine = coarse.repeat_interleave(PARTS, -1).repeat_interleave(PARTS, -2)
    samples = Samples(fine, coarse, coarse[:, 1])
    found = []
    for symmetry in range(8):
        seen, target = samples.batch(torch.tensor([3, 1]), symmetry)
        assert torch.equal(seen.fine[..., ::PARTS, ::PARTS], seen.coarse)
        assert torch.equal(target, seen.coarse[:, 1])
        found.append(target)
    assert torch.equal(found[0], coarse[[3, 1], 1].float())
    assert len({tuple(each.flatten().tolist()) for each in found}) == 8


def test_it_learns_what_the_belief_does_not_say() -> None:
    trainer = PredictorTrainer(settings(updates=100, learning_rate=0.01), CPU)
    found = [trainer.round() for _ in range(3)]
    assert found[-1]["error"] < 0.9 * found[-1]["belief_error"]
    assert trainer.is_over()


def test_updates_that_are_not_finite_are_counted_and_not_made() -> None:
    trainer = PredictorTrainer(settings(), CPU)
    assert trainer.round()["skipped_updates"] == 0
    before = [p.clone() for p in trainer.network.parameters()]
    trainer._samples.target[:] = torch.inf
    found = trainer._learn(trainer._samples)
    assert found["skipped_updates"] == SMALL["updates"]
    assert all(map(torch.equal, before, trainer.network.parameters()))


def test_the_symmetries_of_a_round_are_all_drawn_and_read_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, reads, real = [], [], Tensor.tolist

    class Noted(Samples):
        def batch(self, index: Tensor, symmetry: int):
            drawn.append(symmetry)
            return super().batch(index, symmetry)

    trainer = PredictorTrainer(settings(), CPU)
    trainer.round()
    monkeypatch.setattr(Tensor, "__int__", lambda _: pytest.fail("a read in an update"))
    monkeypatch.setattr(Tensor, "tolist", lambda tensor: reads.append(tensor) or real(tensor))
    trainer._learn(Noted(*trainer._samples))
    assert len(drawn) == SMALL["updates"]
    assert len(set(drawn)) > 4
    assert len(reads) == 1


def test_an_examination_changes_nothing_of_the_training() -> None:
    examined, other = (PredictorTrainer(settings(), CPU) for _ in range(2))
    assert examined.round() == other.round()
    pictures, reliability = examined.examine()
    assert [picture.title for picture in pictures] == ["split", "random_field 3"]
    moves = examined.config.missions.episode_length
    assert reliability.cells.sum() == 2 * 4 * 3 * (moves + 1) * 49  # worlds, missions, UAVs, …
    assert examined.round() == other.round()


def test_it_learns_from_the_largest_team_in_the_longest_missions() -> None:
    mixed = {"experiment": small_config(agents=(1, 3), budget=(2, 4)).experiment}
    configs = settings(), settings().model_copy(update=mixed)
    same, different = (PredictorTrainer(config, CPU) for config in configs)
    assert different.round() == same.round()


def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = PredictorTrainer(settings(), CPU)
    whole.round()
    save_checkpoint(tmp_path / "c.pt", whole.state_dict())
    rest = [whole.round(), whole.round()]
    resumed = PredictorTrainer(settings(), CPU)
    resumed.load_state_dict(load_checkpoint(tmp_path / "c.pt"))
    assert [resumed.round(), resumed.round()] == rest
    assert all(map(torch.equal, resumed.network.parameters(), whole.network.parameters()))


def test_a_map_that_changed_is_refused(tmp_path: Path) -> None:
    def trainer() -> PredictorTrainer:
        np.save(tmp_path / "map.npy", generator.random((90, 90)))
        raster = {"path": str(tmp_path / "map.npy"), "resolution": 1.0}
        world = {"kinds": ("raster",), "raster": raster}
        return PredictorTrainer(settings(worlds=({"kinds": ("split",)}, world)), CPU)

    generator = np.random.default_rng(0)
    state = trainer().state_dict()
    with pytest.raises(ConfigError, match=r"raster\.path: .*map\.npy"):
        trainer().load_state_dict(state)


def command(tmp_path: Path, *arguments: str) -> int:
    file = tmp_path / "small.yaml"
    tree = settings(rounds=1).model_dump(by_alias=True, mode="json", exclude_defaults=True)
    tree["logging"] = {"directory": str(tmp_path / "runs")}
    file.write_text(yaml.safe_dump(tree))
    return predict.main(["--config", str(file), "--device", "cpu", *arguments])


def test_the_command_trains_and_ends(tmp_path: Path) -> None:
    assert command(tmp_path, "--run-name", "p") == 0
    run = tmp_path / "runs" / "p"
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {"best.pt", "last.pt"}
    last = json.loads((run / "summary.json").read_text())["results"]["last"]
    assert 0 <= last["examined_calibration_error"] <= 1
    figures = {path.name for path in (run / "figures").iterdir()}
    assert figures == {"predictions.png", "reliability.png"}
    summary = (run / "summary.json").stat()
    assert command(tmp_path, "--run-name", "p", "--resume") == 0
    assert (run / "summary.json").stat().st_mtime_ns == summary.st_mtime_ns


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--resume"], "--resume"),
        (["--set", "prediction.worlds=[]"], "prediction.worlds"),
        (
            ["--set", "prediction.worlds=[{}, {kinds: [raster], raster: {path: none.npy}}]"],
            "prediction.worlds[1]: sensor.simulation.raster.path: none.npy",
        ),
        (["--set", "prediction.worlds=[{kinds: [sea]}]"], "prediction.worlds[0].kinds[0]"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, refused: Callable[..., str], arguments: list[str], key: str
) -> None:
    assert key in refused(command, tmp_path, *arguments)
