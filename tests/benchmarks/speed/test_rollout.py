"""Joint steps per second, their stages and their memory."""

from __future__ import annotations

import pytest
import torch

from benchmarks.helpers.command_line import with_overrides
from benchmarks.helpers.harness import CPU
from benchmarks.speed import rollout
from marl_framework.algorithms.graphs import Graphs
from marl_framework.config.errors import ConfigError
from marl_framework.stage_timer import StageTimer
from tests.benchmarks.running import positive, run
from tests.tape import TapeBackend

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("policy", rollout.POLICIES)
def test_rollout_writes_consistent_rows(policy, tmp_path, capsys, monkeypatch):
    for name, value in (("MOST_EAGER", 1), ("MEMORY_ENVS", (2, 4))):
        monkeypatch.setattr(rollout, name, value)
    memory = [] if policy == "random" else ["--no-memory"]  # one of them with memory
    found = run(rollout, tmp_path, "--num-envs", "3,1", "--policy", policy, *memory)
    rows = found["rows"]
    assert [(r["num_envs"], r["compiled"]) for r in rows] == [(1, True), (1, False), (3, True)]
    for row in rows:
        assert row["joint_steps_per_s"] * row["seconds_per_joint_step"] == pytest.approx(1)
        assert 0 < row["lower_quartile"] <= row["seconds_per_joint_step"] <= row["upper_quartile"]
        assert row["episodes"] >= 3
        assert row["recorded"] is False
        moved = found["must_do"]["bytes"] * row["joint_steps_per_s"]
        bandwidth = found["machine"]["memory_bandwidth"]["cpu"]
        assert row["share_of_bandwidth"] == pytest.approx(moved / bandwidth)
        assert tuple(row["stages"]) == rollout.STAGES
        assert positive(row["stages"][stage] for stage in rollout.STAGES[:-1])
    assert found["settings"]["policy"] == policy
    assert f"policy: {policy}" in capsys.readouterr().out
    assert ("bytes_per_env" in found) == (policy == "random")


def test_random_policy_is_even_over_the_allowed_actions(config):
    flown = rollout.Flight(config, 5, CPU).episode()
    even = flown.masks / flown.masks.sum(-1, keepdim=True)
    assert torch.allclose(flown.probabilities, even)


def test_stages_are_watched_only_while_they_are_timed(config):
    flight = rollout.Flight(config, 2, CPU)
    owned = [set(vars(owner)) for owner in (flight, flight.task, flight.environment)]
    assert tuple(flight.stages(1)) == rollout.STAGES
    assert [set(vars(owner)) for owner in (flight, flight.task, flight.environment)] == owned


def test_recorded_episodes_are_replayed_and_stages_are_not(config, monkeypatch):
    backend = TapeBackend()
    monkeypatch.setattr(rollout, "make_graphs", lambda *_: Graphs(CPU, backend))
    operators = with_overrides(config, "compute.compile=false")
    row = rollout.measure_row(operators, 2, CPU, "random", 0.001)
    assert row["recorded"]
    assert backend.captures == 1
    assert backend.replays >= row["episodes"]
    assert positive(row["stages"][stage] for stage in rollout.STAGES[:-1])


def test_a_stage_inside_another_belongs_to_the_outer_one():
    now = 0.0

    def wait(seconds):
        nonlocal now
        now += seconds

    clock = rollout.StageClock(StageTimer(CPU, clock=lambda: now))
    inner = clock.around("inner", wait)

    def both():
        wait(1)
        inner(2)

    outer = clock.around("outer", both)

    def work():
        outer()
        inner(4)
        wait(8)

    for _ in range(2):  # every call starts again
        assert clock.measure(work) == {"outer": 3, "inner": 4, "other": 8}


def test_memory_of_a_mission_is_the_slope_between_both_numbers(config, monkeypatch):
    few, many = rollout.MEMORY_ENVS
    peaks = {few: 1_000_000 + few * 700, many: 1_000_000 + many * 700}
    monkeypatch.setattr(rollout, "flight_peak", lambda _c, num, _d, _p: peaks[num])
    assert rollout.bytes_per_env(config, CPU, "random") == 700


def test_more_missions_than_memory_are_refused(config, monkeypatch):
    rows, cols = config.geometry.map_shape
    free = 10 * rows * cols * (2 * 4 + 4 + 1)
    monkeypatch.setattr(rollout, "device_memory", lambda _: (free, free))
    rollout.check_missions_fit(config, 10, CPU)
    with pytest.raises(ConfigError, match=r"--num-envs 11.* 10$"):
        rollout.check_missions_fit(config, 11, CPU)
