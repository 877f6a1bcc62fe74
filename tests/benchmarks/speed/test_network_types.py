"""Types of networks are timed."""

from __future__ import annotations

import pytest

from benchmarks.speed import network_types
from tests.benchmarks.running import positive, run


@pytest.mark.usefixtures("quick")
def test_each_type_is_timed_with_each_team(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(network_types, "TEAMS", (2, 3))
    monkeypatch.setattr(network_types, "MISSIONS", (1, 2))
    rows = run(network_types, tmp_path)["rows"]
    pairs = [(row["uavs"], row["type"]) for row in rows]
    assert pairs == [(2, "cnn"), (2, "attention"), (3, "cnn"), (3, "attention")]
    for row in rows:
        assert set(row["seconds_move"]) == {"1", "2"}
        assert positive([row["agent_transitions_per_s"], *row["seconds_move"].values()])
    sizes = [row["actor_parameters"] for row in rows]
    assert sizes[0] == sizes[2] != sizes[1]
    assert f"{sizes[0]:,}" in capsys.readouterr().out
