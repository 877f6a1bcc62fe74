"""Tree search over missions and leaves."""

from __future__ import annotations

import pytest

from benchmarks.helpers.harness import CPU
from benchmarks.speed import search
from tests.benchmarks.running import positive, run


@pytest.mark.usefixtures("quick")
def test_missions_and_leaves_are_timed_next_to_one_at_a_time(tmp_path, capsys, monkeypatch):
    sizes = {"QUICK_MISSIONS": (1, 3), "QUICK_LEAVES": (1, 4), "QUICK_SIMULATIONS": 8}
    for name, value in sizes.items():
        monkeypatch.setattr(search, name, value)
    found = run(search, tmp_path, "--quick")
    assert found["settings"]["simulations"] == 8
    first, *rows = found["rows"]
    assert (first["method"], first["times_one_at_a_time"]) == (search.PLAIN, 1)
    assert [(row["method"], row["missions"], row["leaves"]) for row in rows] == [
        (method, missions, leaves)
        for missions in (1, 3)
        for method, leaves in ((search.BEAM, None), (search.TREE, 1), (search.TREE, 4))
    ]
    assert positive(row[name] for row in rows for name in ("seconds_search", "seconds_network"))
    trees = [row for row in found["rows"] if row["method"] != search.BEAM]
    assert positive(row["simulations_per_s"] for row in trees)
    assert search.TREE in capsys.readouterr().out


def test_simulations_that_find_nothing_do_not_count(config):
    settings = config.experiment.baselines.search
    settings = settings.model_copy(update={"simulations": 50, "depth": 1})
    move = search.Move(config, 1, CPU)
    counted = search.CountedTree(move.view, 50, 1, 1)
    move.decide(counted)
    actions = move.view.lattice.num_actions
    assert 0 < counted.leaf_count <= config.missions.most_agents * actions
    assert 0 < move.decide_plainly(settings) <= config.missions.most_agents * actions
