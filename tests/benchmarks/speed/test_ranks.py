"""The prediction for many ranks."""

from __future__ import annotations

import pytest

from benchmarks.speed import ranks
from marl_framework.config.loading import load_config
from tests.benchmarks.running import run


def test_a_ring_exchange_takes_bytes_over_rate_and_latencies():
    # Two ranks send half of 100 bytes twice; each of the two messages waits 1 s.
    assert ranks.exchange_seconds((10.0, 1.0), 2, 100) == pytest.approx(100 / 10 + 2)
    assert ranks.exchange_seconds((10.0, 0.0), 10**6, 100) == pytest.approx(2 * 100 / 10, rel=1e-5)


def test_the_plan_shares_the_work_and_adds_the_exchange():
    step = {"seconds": 8.0, "updates": 2, "gradient_bytes": 100}
    found = ranks.plan(step, (100.0, 0.0), 4)  # 1.5 s an update
    assert found["exchange_seconds"] == pytest.approx(3.0)
    assert found["fixed_speed_up"] == pytest.approx(8 / (2 + 3))
    assert found["grown_speed_up"] == pytest.approx(4 * 8 / (8 + 3))
    assert found["grown_efficiency"] == pytest.approx(8 / 11)


@pytest.mark.usefixtures("quick")
def test_the_plan_comes_from_a_measured_step(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "gloo_seconds", lambda size: size / 1e9)
    found = run(ranks, tmp_path, "--steps", "1")
    learning = load_config("params_test").learning
    assert found["step"]["updates"] == 2 * learning.data_passes * learning.batch_number
    assert found["step"]["transitions"] == 32
    assert len(found["rows"]) == (len(ranks.LINKS) + 1) * len(ranks.COUNTS)
    efficiencies = [row["fixed_efficiency"] for row in found["rows"][: len(ranks.COUNTS)]]
    assert efficiencies == sorted(efficiencies, reverse=True)
    out = capsys.readouterr().out
    assert all(out.count(link) == len(ranks.SHOWN_COUNTS) for link in ranks.SHOWN)
    assert "PCIe" not in out


@pytest.mark.soak
def test_two_processes_exchange_a_gradient():
    assert 0 < ranks.gloo_seconds(400) < 60
