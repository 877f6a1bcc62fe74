"""The published way against batched maps: what is written, and that wrong maps are noticed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from benchmarks.helpers import harness
from benchmarks.speed import transformations
from benchmarks.speed.transformations_backends import BACKENDS, counted_cells
from benchmarks.speed.transformations_maps import CHANNELS, HEARD, ONE_THREAD, OWN
from marl_framework.observations import channels
from tests.benchmarks.running import FAR, read_strict

AGENTS = [1, 4]
ROW_KEYS = {
    "backend", "agents", "missions", "uavs_per_mission", "fusions_per_observation",
    "measured_agents", "seconds_per_observation", "lower_quartile", "upper_quartile", "repeats",
    "observations_per_second", "speedup", "speedup_windowed", "seconds_own_reading", "max_error",
    "bytes_moved", "bandwidth_share", "status",
}  # fmt: skip
NUMBERS = ROW_KEYS - {"backend", "status", "seconds_own_reading"}


def run(folder: Path, *arguments: str) -> int:
    given = ["--config", "params_test.yaml", "--set", "compute.device=cpu", "--set", FAR]
    given += ["--agents", "1,4", "--seconds-per-row", "0.001"]
    return transformations.main([*given, "--out", str(folder / "out.json"), *arguments])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("transformations")
    assert run(folder) == 0
    assert cv2.imread(str(folder / "out.png")) is not None
    result: dict[str, Any] = read_strict(folder / "out.json")
    return result


def test_results_have_their_schema(found):
    assert set(found) == {"schema", "suite", "settings", "machine", "rows", "maps"}
    assert (found["schema"], found["suite"]) == (harness.SCHEMA, "transformations")
    assert found["machine"]["memory_bandwidth"]["cpu"] > 0
    assert {"commit", "cpu", "platform", "load_average", "torch_threads"} <= set(found["machine"])
    assert {"torch", "kornia", "numpy", "opencv"} <= set(found["machine"]["versions"])
    assert found["settings"]["agents"] == AGENTS
    assert found["settings"]["configuration"]["sensor"]["pixel"]["number_x"] == 12


def test_every_backend_has_a_row_for_every_number_of_agents(found):
    pairs = [(row["backend"], row["agents"]) for row in found["rows"]]
    assert pairs == [(backend, number) for number in AGENTS for backend in BACKENDS]


def test_rows_are_complete(found):
    for row in found["rows"]:
        assert set(row) == ROW_KEYS
        if "cuda" in row["backend"] and not torch.cuda.is_available():
            assert row["status"] == "no CUDA device found"
            assert row["seconds_per_observation"] is None
            assert row["speedup"] is None
            continue
        assert row["status"] == "ok"
        assert all(isinstance(row[key], int | float) for key in NUMBERS)
        assert row["lower_quartile"] <= row["seconds_per_observation"] <= row["upper_quartile"]
        eager = row["backend"] in ("kornia cpu", ONE_THREAD, "kornia cuda")
        assert (row["seconds_own_reading"] is not None) == eager


def test_all_backends_agree(found):
    errors = [row["max_error"] for row in found["rows"] if row["max_error"] is not None]
    assert len(errors) >= 2 * 5
    assert max(errors) < 1e-4


def test_speedups_are_ratios_of_the_times(found):
    for number in AGENTS:
        rows = {row["backend"]: row for row in found["rows"] if row["agents"] == number}
        seconds = {name: row["seconds_per_observation"] for name, row in rows.items()}
        ours = rows["kornia cpu"]
        assert ours["speedup"] == pytest.approx(seconds["opencv"] / seconds["kornia cpu"])
        windowed = seconds["opencv windowed"] / seconds["kornia cpu"]
        assert ours["speedup_windowed"] == pytest.approx(windowed)
        assert rows["opencv"]["speedup"] == 1


def test_every_map_has_a_row(found):
    names = [row["map"] for row in found["maps"] if row["backend"] == ONE_THREAD]
    assert names == [OWN, HEARD, *CHANNELS, "all 7 channels"]
    for row in found["maps"]:
        ratio = row["baseline_seconds"] / row["seconds_per_map"]
        assert row["speedup"] == pytest.approx(ratio)


def test_a_wrong_map_is_noticed(tmp_path, monkeypatch, capsys):
    right = channels.probability_map
    monkeypatch.setattr(channels, "probability_map", lambda pooled: right(pooled) + 3e-4)
    assert run(tmp_path, "--agents", "4") == 1
    rows = read_strict(tmp_path / "out.json")["rows"]
    assert {r["backend"] for r in rows if r["status"] == "differs from the baseline"} == {
        backend
        for backend in BACKENDS
        if backend.startswith("kornia") and (torch.cuda.is_available() or "cpu" in backend)
    }
    assert "differs from the baseline" in capsys.readouterr().out


def test_errors_are_largest_differences(recorded):
    seen = np.tile(recorded.expected, (2, 1, 1, 1))  # more UAVs than were flown
    assert recorded.largest_error(seen) == 0
    seen[-1, 2, 3, 0] += 0.25
    assert recorded.largest_error(seen) == pytest.approx(0.25)
    seen[-1, 2, 3, 0] = np.nan
    assert recorded.largest_error(seen) == math.inf


def test_cells_where_rounding_decides_are_left_out(recorded):
    expected = recorded.expected.copy()
    expected[0, 1, 1, CHANNELS.index("probability")] = 0.501 + 2e-6
    counted = counted_cells(recorded.plain, expected)
    assert not counted[0, 1, 1, CHANNELS.index("entropy")]
    assert counted[..., CHANNELS.index("probability")].all()
    assert counted.mean() > 0.99


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agents", "1,x"], "--agents 1,x: give whole numbers"),
        (["--agents", ""], "--agents : give whole numbers"),
        (["--agents", "0"], "--agents 0: must lie in 1"),
        (["--agents", "5"], "--agents 5: a mission has 2 UAVs"),
        (["--seconds-per-row", "0"], "--seconds-per-row 0: give a number"),
        (["--seconds-per-row", "nan"], "--seconds-per-row nan: give a number"),
        (["--config", "none.yaml"], "none.yaml: no such file"),
        (["--set", "environment.sed=1"], "environment.sed"),
        (["--set", "compute.device=cuda:99"], "cuda:99"),
        (["--out", "results.txt"], "--out results.txt: the name must end in .json"),
        (["--out", "{tmp}/file/below/a.json"], "below"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run(tmp_path, *(a.replace("{tmp}", str(tmp_path)) for a in arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_unknown_arguments_end_with_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        transformations.main(["--agent-count", "4"])
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
