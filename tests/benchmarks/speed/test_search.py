"""Tree search over missions and leaves."""

from __future__ import annotations

import pytest

from benchmarks.speed import search
from tests.benchmarks.running import positive, refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_missions_and_leaves_are_timed_beside_one_at_a_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(search, "QUICK_MISSIONS", (1, 3))
    monkeypatch.setattr(search, "QUICK_LEAVES", (1, 4))
    monkeypatch.setattr(search, "QUICK_SIMULATIONS", 8)
    found = run(search, tmp_path, "--quick")
    assert found["settings"]["simulations"] == 8
    first, *rows = found["rows"]
    assert (first["method"], first["times_one_at_a_time"]) == (search.PLAIN, 1)
    assert [(row["method"], row["missions"], row["leaves"]) for row in rows] == [
        (method, missions, leaves)
        for missions in (1, 3)
        for method, leaves in ((search.BEAM, None), (search.TREE, 1), (search.TREE, 4))
    ]
    assert positive([row["seconds_search"] for row in rows])
    assert positive([row["seconds_network"] for row in rows])
    trees = [row for row in found["rows"] if row["method"] != search.BEAM]
    assert positive([row["simulations_per_s"] for row in trees])
    assert "(quick)" in capsys.readouterr().out


def test_simulations_that_find_nothing_do_not_count(config):
    settings = config.experiment.baselines.search
    settings = settings.model_copy(update={"simulations": 50, "depth": 1})
    move = search.Move(config, 1, search.harness.CPU)
    counted = search._CountedTree(move.view, 50, 1, 1)
    move.decide(counted)
    actions = move.view.lattice.num_actions
    assert 0 < counted.found <= config.missions.most_agents * actions
    assert 0 < move.decide_plainly(settings) <= config.missions.most_agents * actions


def test_bad_input_is_one_line(tmp_path, capsys):
    assert "--seconds-per-row" in refusal(search, tmp_path, capsys, "--seconds-per-row", "0")
