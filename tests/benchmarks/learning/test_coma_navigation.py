"""The benchmark of COMALoss trains each seed, and averages the first and last returns."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torchrl")
pytest.importorskip("vmas")

import tests.quiet_torchrl  # noqa: F401
from benchmarks.learning import coma_navigation


def test_each_seed_is_trained_and_averaged(tmp_path: Path, monkeypatch, capsys) -> None:
    from examples import torchrl_coma

    def train(options) -> list[float]:
        return [float(step + options.seed) for step in range(options.iterations)]

    monkeypatch.setattr(torchrl_coma, "train", train)
    out = tmp_path / "found.json"
    arguments = ["--seeds", "1,3", "--iterations", "10", "--device", "cpu", "--out", str(out)]
    assert coma_navigation.main(arguments) == 0
    runs = json.loads(out.read_text())["runs"]
    assert [run["seed"] for run in runs] == [1, 3]
    assert runs[1]["returns"][0] == 3.0
    printed = capsys.readouterr().out
    assert "32,000" in printed  # 10 iterations of 64 environments and 50 steps
    assert "4.000" in printed  # mean of 3 and 5, the seeds' first five
    assert "9.000" in printed
