"""Training steps, and their networks alone."""

from __future__ import annotations

import pytest

from benchmarks.speed import training
from tests.benchmarks.running import positive, read_strict, run

pytestmark = pytest.mark.usefixtures("quick")


def test_training_writes_consistent_numbers(tmp_path, capsys):
    found = run(training, tmp_path, "--steps", "2", "--precision", "float32")
    step, alone = found["seconds_per_training_step"], found["networks"]
    assert found["transitions_per_training_step"] == 4 * 2 * 4  # missions, UAVs, moves
    assert found["agent_transitions_per_s"] * step == pytest.approx(32)
    assert alone["agent_transitions_per_s"] * alone["seconds"] == pytest.approx(32)
    assert alone["flops_per_s"] * alone["seconds"] == pytest.approx(alone["flops"])
    assert 0 < found["lower_quartile"] <= step <= found["upper_quartile"]
    assert found["precision"] == "float32"
    assert set(found["stages"]) == {"rollout", "update", "other"}
    assert set(alone["stages"]) == {"inference", "targets", "learning"}
    assert positive([*alone["stages"].values(), found["stages"]["rollout"]])
    assert positive([found["share_of_network_limit"], found["peak_memory_bytes"]])
    assert found["settings"]["inference_batches"] == {"8": 4}
    assert found["settings"]["learning_batches"] == {"16": 4}  # 2 batches, 2 passes
    products = found["products"]
    assert positive(products.values())
    assert products["share_of_networks"] * products["flops_per_s"] == pytest.approx(
        alone["flops_per_s"]
    )
    assert "against" not in found
    assert f"{found['share_of_network_limit']:.1%}" in capsys.readouterr().out


def test_shares_are_medians_over_pairs(tmp_path, monkeypatch):
    """Neither a slow step nor a fast machine in one pair changes them."""
    alone = iter([0.5, 0.0, 4.0])
    walls = iter([[(1.0, {}), (10.0, {}), (2.0, {})], [(3.0, {}), (1.0, {}), (4.0, {})]])
    monkeypatch.setattr(training, "time_steps", lambda *_: iter(next(walls)))
    monkeypatch.setattr(training.NetworksAlone, "flops", lambda _: 7)
    monkeypatch.setattr(
        training.NetworksAlone,
        "seconds",
        lambda _: {"inference": 0.0, "targets": 0.0, "learning": next(alone)},
    )
    found = run(training, tmp_path, "--steps", "3", "--against", "learning.gamma=0.9")
    assert found["share_of_network_limit"] == pytest.approx(0.5)  # of 0.5, 0, 2
    assert found["seconds_per_training_step"] == 2.0
    assert found["against"]["override"] == "learning.gamma=0.9"
    assert found["against"]["times_as_fast"] == 2.0  # of 3, 0.1, 2


def test_steps_made_so_far_are_kept(tmp_path, monkeypatch):
    def end_after_one(*_):
        yield 1.0, {"rollout": 0.5}
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "time_steps", end_after_one)
    with pytest.raises(KeyboardInterrupt):
        run(training, tmp_path, "--steps", "3")
    found = read_strict(tmp_path / "found.json")
    assert found["seconds_per_training_step"] == 1.0
