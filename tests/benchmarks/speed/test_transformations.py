"""The benchmarks: their arithmetic, what they write, and that they notice wrong results."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from benchmarks import (
    draw_observations,
    harness,
    mid_mission,
    one_at_a_time,
    reference,
    transformations,
)
from benchmarks.one_at_a_time import Missions
from benchmarks.transformations_backends import BACKENDS, Recorded, counted_cells
from benchmarks.transformations_maps import CHANNELS, HEARD, ONE_THREAD, OWN
from marl_framework.config.loading import load_config
from marl_framework.observations import channels

AGENTS = [1, 4]
FAR = "experiment.uav.communication_range=100"  # so that there is something to fuse
ROW_KEYS = {
    "backend", "agents", "missions", "uavs_per_mission", "fusions_per_observation",
    "measured_agents", "seconds_per_observation", "lower_quartile", "upper_quartile", "repeats",
    "observations_per_second", "speedup", "speedup_windowed", "seconds_own_reading", "max_error",
    "bytes_moved", "bandwidth_share", "status",
}  # fmt: skip
NUMBERS = ROW_KEYS - {"backend", "status", "seconds_own_reading"}


# Harness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3.0], (3, 3, 3)),
        ([4.0, 2.0], (2.5, 3, 3.5)),
        ([5.0, 1.0, 3.0, 2.0, 4.0], (2, 3, 4)),
        ([7.0, 1.0, 2.0, 100.0], (1.75, 4.5, 30.25)),
    ],
)
def test_quartiles(samples, expected):
    assert harness.quartiles(samples) == pytest.approx(expected)
    assert harness.quartiles(samples) == pytest.approx(np.quantile(samples, [0.25, 0.5, 0.75]))


def test_no_samples_have_no_quartiles():
    with pytest.raises(ValueError, match="no samples"):
        harness.quartiles([])


class Work:
    """Takes as long as it is told to, by a clock that nobody else moves."""

    def __init__(self, *durations: float) -> None:
        self.now, self.calls, self._durations = 0.0, 0, durations

    def __call__(self) -> None:
        self.now += self._durations[min(self.calls, len(self._durations) - 1)]
        self.calls += 1

    def measure(self, seconds: float, **options: Any) -> harness.Timing:
        return harness.measure(self, seconds, clock=lambda: self.now, **options)


def test_warm_up_does_not_count():
    work = Work(50, 50, 1, 2, 3, 4)
    timing = work.measure(10, warm_up=2)
    assert timing == harness.Timing(median=2.5, lower=1.75, upper=3.25, repeats=4)
    assert work.calls == 6


def test_slow_work_is_repeated_a_few_times_all_the_same():
    assert Work(100).measure(1, least=3).repeats == 3


def test_work_without_duration_ends():
    assert Work(0).measure(1).repeats == 10_000


def test_time_of_one_of_many():
    assert harness.Timing(8, 4, 16, 5).per(4) == harness.Timing(2, 1, 4, 5)


def test_bandwidth_counts_both_ways(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(harness.time, "perf_counter", lambda: float(next(ticks)))
    assert harness.memory_bandwidth(harness.CPU, size=1000) == 2000


def test_json_is_strict(tmp_path):
    path = tmp_path / "a.json"
    harness.write_json(path, "suite", {"rows": [{"a": math.nan, "b": math.inf, "c": (1, 2.5)}]})
    assert strict(path) == {
        "schema": harness.SCHEMA,
        "suite": "suite",
        "rows": [{"a": None, "b": None, "c": [1, 2.5]}],
    }
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (2.0, "2 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 µs"), (7.89e-9, "7.89 ns"),
     (9.996e-4, "1 ms"), (0.9999, "1 s"), (-3.4e-3, "−3.4 ms")],
)  # fmt: skip
def test_durations_read_well(seconds, text):
    assert harness.duration_text(seconds) == text


# The baseline -----------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [0.5, 0.3])
def test_fusing_over_the_whole_map_equals_fusing_in_the_window(prior):
    rng = np.random.default_rng(0)
    belief = rng.random((30, 20)).astype(np.float32)
    belief[0, :2] = 1e-6, 1  # beyond the clamp: cells outside must stay all the same
    seen = reference.Footprint(5, -2, 8, 8, 5, 13, 0, 6)
    reading = np.where(rng.random((8, 6)) < 0.5, 0.9, 0.1).astype(np.float32)
    whole, window = belief.copy(), belief.copy()
    one_at_a_time.fuse_whole_map(whole, seen, reading, prior)
    reference.fuse(window, seen, reading, prior)
    np.testing.assert_array_equal(whole, window)
    assert (whole != belief).sum() == 48


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded.of(load_config("params_test.yaml", [FAR]), 3)


def test_a_pool_sees_what_one_process_sees(recorded):
    plain = recorded.plain
    with one_at_a_time.process_pool({plain.n_agents: plain}, 2) as pool:
        seen = pool(plain.n_agents, plain.agents)
    np.testing.assert_array_equal(seen, recorded.expected)


def test_observing_fuses_in_place(recorded):
    plain = recorded.plain
    fresh = plain.fresh()
    one_at_a_time.observe(fresh, 3, one_at_a_time.fuse_whole_map)  # UAV 1 of mission 1
    changed = [
        (one != other).any()
        for team, others in zip(fresh.beliefs, plain.beliefs, strict=True)
        for one, other in zip(team, others, strict=True)
    ]
    assert changed == [number == 3 for number in range(6)]


def test_bytes_are_those_of_a_count_by_hand():
    geometry = replace(
        reference.Geometry.of(load_config("params_test.yaml")), lattice=(2, 2, 3), cells=(40, 40)
    )
    ones = [np.full((n, n), 0.9, np.float32) for n in (10, 20)]
    missions = Missions(geometry, [0], [[(0, 0, 0), (1, 1, 1)]], [[[0, 1], [1]]], [ones], [[]])
    sides = [side[0] for side in geometry.sides]
    first = {  # hears a reading of 20 × 20 cells, has one of 10 × 10
        "whole map": 12 * 1600 + 4 * (2 * 1600 + sides[0] ** 2 + 28),
        "windowed": 12 * 400 + 4 * (2 * 1600 + sides[0] ** 2 + 28),
        "batched": 9 * 400 + 12 * 100 + 4 * (5 + 7) * 4,
    }
    assert one_at_a_time.bytes_moved(missions, 1) == first
    looks = 4 * (2 * 1600 + sides[1] ** 2 + 28)
    both = one_at_a_time.bytes_moved(missions, 2)
    assert both["whole map"] == (first["whole map"] + looks) / 2


# Transformations --------------------------------------------------------------------------


def strict(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def run(folder: Path, *arguments: str) -> int:
    given = ["--config", "params_test.yaml", "--set", FAR]
    given += ["--agents", "1,4", "--seconds-per-row", "0.001"]
    return transformations.main([*given, "--out", str(folder / "out.json"), *arguments])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("transformations")
    assert run(folder) == 0
    assert cv2.imread(str(folder / "out.png")) is not None
    result: dict[str, Any] = strict(folder / "out.json")
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
    rows = strict(tmp_path / "out.json")["rows"]
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


def test_missions_are_the_same_every_time(recorded):
    again = mid_mission.fly(recorded.config, 3)
    for (name, one), (_, other) in zip(
        again.state.tensors(), recorded.flown.state.tensors(), strict=True
    ):
        assert torch.equal(one, other), name
    assert len(again.state.positions[..., 2].unique()) > 1
    assert all(recorded.plain.senders(k) == [1 - k % 2] for k in range(6))


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


# Figures of the observations --------------------------------------------------------------


def test_every_channel_is_drawn(tmp_path, capsys):
    assert draw_observations.main([str(tmp_path), "--config", "params_test.yaml"]) == 0
    names = {path.stem for path in tmp_path.iterdir()}
    channels = {*CHANNELS, "global_position", "global_entropy", "global_probability",
                "global_footprint", "global_uncertainty", "other_actions",
                "uncertainty"}  # fmt: skip
    assert names == {*channels, "centred", "mission", "area"}
    for path in tmp_path.iterdir():
        assert cv2.imread(str(path)) is not None
        assert path.stat().st_size < 200_000
    kornia, ours = capsys.readouterr().out.splitlines()[-1].split()[-2:]
    assert float(ours) < 1e-6 < 1e-3 < float(kornia)


def test_the_square_drawn_is_the_one_that_is_averaged(monkeypatch):
    config = load_config("params_test.yaml")
    clipped = 0
    for mission in range(4):
        monkeypatch.setattr(draw_observations, "MISSION", mission)
        scene = draw_observations.fly(config)
        pooled = reference.entropy(reference.area(scene.square, config.lattice_shape))
        np.testing.assert_allclose(scene.observation["local_entropy"], pooled, atol=1e-4)
        clipped += bool((scene.square == 0.5).any())
    assert clipped


def test_the_painter_names_a_folder_it_cannot_make(tmp_path, capsys):
    (tmp_path / "file").touch()
    given = [str(tmp_path / "file" / "below"), "--config", "params_test.yaml"]
    assert draw_observations.main(given) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/file")
