"""The comparison by turns, with whichever libraries are installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.speed import side_by_side
from tests.benchmarks.running import run

pytestmark = pytest.mark.usefixtures("here")


def test_installed_libraries_are_timed_and_others_named(tmp_path, monkeypatch, capsys):
    flown = []

    def other(config, num_envs):
        return side_by_side.Flight(lambda: flown.append(num_envs), 7, 16, None)

    contenders = {
        "mapping mission": ("marl_framework", side_by_side.ours),
        "another": ("torch", other),
        "missing": ("no_such_package", other),
    }
    monkeypatch.setattr(side_by_side, "CONTENDERS", contenders)
    found = run(side_by_side, tmp_path, "--num-envs", "3,1")
    assert [(row["task"], row["num_envs"]) for row in found["rows"]] == [
        (task, number) for number in (1, 3) for task in contenders
    ]
    for row in found["rows"]:
        assert ("joint_steps_per_s" in row) == (row["task"] != "missing")
        if row["task"] == "mapping mission":
            assert 0 < row["lower"] <= row["joint_steps_per_s"] <= row["upper"]
            assert (
                row["moves"]
                == found["settings"]["configuration"]["experiment"]["constraints"]["budget"] + 1
            )
        if row["task"] == "another":
            assert flown.count(row["num_envs"]) == row["rounds"] + 1  # one call warms up
            assert (row["moves"], row["observation_bytes"], row["cells"]) == (7, 16, None)
    assert capsys.readouterr().out.count("not installed") == 2


def test_ours_sees_maps_of_the_lattice(config):
    flight = side_by_side.ours(config, 2)
    side = config.geometry.lattice_shape[0]
    assert flight.observation % (4 * side * side) == 0
    rows, columns = config.geometry.map_shape
    assert flight.cells == rows * columns
    flight.fly()


def test_a_scenario_of_vmas_flies_our_number_of_agents(config):
    pytest.importorskip("vmas")
    flight = side_by_side.vmas("navigation")(config, 3)
    assert flight.observation == 4 * (6 + 12)  # position, speed, goal, and twelve rays
    assert flight.cells is None


def test_the_engine_gets_a_level_of_our_size_and_whole_episodes(config, monkeypatch):
    steps = []

    class Engine:
        def __init__(self, num_envs, image, tiles, agents, survivors, **settings):
            assert Path(image).stat().st_size > 0
            level = [json.loads(Path(file).read_text()) for file in (tiles, agents, survivors)]
            assert [len(part) for part in level] == [1, 2, 2]
            self.seen = torch.empty((num_envs, 2, 8), pin_memory=True)

        def reset(self):
            steps.append("reset")
            return {"spatial": self.seen, "internal": self.seen[..., :3]}, {}

        def step(self, move, radio):
            assert (move.shape, radio.shape) == ((3, 2, 2), (3, 2))
            steps.append("step")

    module = SimpleNamespace(SARBatchedGridEnv=Engine)
    monkeypatch.setattr(side_by_side, "import_module", lambda name: module)
    flight = side_by_side.hide_and_seek(config, 3)
    assert flight.observation == 4 * (8 + 3)
    steps.clear()
    flight.fly()
    assert steps == ["reset", *["step"] * flight.moves]
