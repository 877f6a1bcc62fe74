"""Stages of a computation are timed, and nothing waits for a GPU."""

from typing import Any

import pytest
import torch

from marl_framework.stage_timer import StageTimer
from tests.terminal import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(clock: Clock) -> StageTimer:
    return StageTimer(torch.device("cpu"), clock)


def spend(timer: StageTimer, clock: Clock, stage: str, seconds: float) -> None:
    with timer(stage):
        clock.now += seconds


def test_stages_add_up_and_the_rest_is_other(timer: StageTimer, clock: Clock) -> None:
    spend(timer, clock, "rollout", 3.0)
    clock.now += 1.0  # outside all stages
    spend(timer, clock, "update", 4.0)
    spend(timer, clock, "rollout", 2.0)
    assert timer.seconds() == {"rollout": 5.0, "update": 4.0}
    assert timer.shares() == pytest.approx({"rollout": 0.5, "update": 0.4, "other": 0.1})
    assert timer.wall() == 10.0


def test_reset_starts_an_interval_and_totals_go_on(timer: StageTimer, clock: Clock) -> None:
    spend(timer, clock, "rollout", 3.0)
    timer.count("transitions", 60)
    timer.reset()
    assert timer.seconds() == {}
    assert timer.rates() == {}
    spend(timer, clock, "update", 1.0)
    timer.count("transitions", 40)
    timer.count("transitions", 10)
    assert timer.seconds() == {"update": 1.0}
    assert timer.rates() == {"transitions": 50.0}  # 50 in 1 s
    assert timer.seconds(total=True) == {"rollout": 3.0, "update": 1.0}
    assert timer.shares(total=True) == {"rollout": 0.75, "update": 0.25, "other": 0.0}
    assert timer.wall(total=True) == 4.0


def test_no_time_at_all_divides_by_nothing(timer: StageTimer) -> None:
    timer.count("transitions", 5)
    assert timer.shares() == {}
    assert timer.rates() == {"transitions": 0.0}


def test_a_stage_that_fails_is_timed_and_over(timer: StageTimer, clock: Clock) -> None:
    def fail() -> None:
        with timer("rollout"):
            clock.now += 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    spend(timer, clock, "rollout", 1.0)
    assert timer.seconds() == {"rollout": 3.0}


def test_stages_do_not_nest(timer: StageTimer, clock: Clock) -> None:
    with pytest.raises(RuntimeError, match=r"'b' .* 'a'"), timer("a"), timer("b"):
        pass
    spend(timer, clock, "b", 1.0)
    assert timer.seconds()["b"] == 1.0


class FakeGpu:
    """Stands in for CUDA: an event is due when it is recorded; waiting is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        self.waits = 0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing

            def record(self, stream: str) -> None:
                assert stream == "stream of cuda:1"
                self.time = clock.now

            def synchronize(self) -> None:
                gpu.waits += 1

            def elapsed_time(self, end: Any) -> float:
                assert gpu.waits, "read before the work was done"
                return (end.time - self.time) * 1000

        def refuse(*_: Any) -> None:
            raise AssertionError("the whole device was waited for")

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
        monkeypatch.setattr(torch.cuda, "synchronize", refuse)


def test_a_gpu_is_waited_for_only_when_the_times_are_read(monkeypatch, clock) -> None:
    gpu = FakeGpu(monkeypatch, clock)
    timer = StageTimer(torch.device("cuda", 1), clock)
    for _ in range(5):
        spend(timer, clock, "rollout", 3.0)
        spend(timer, clock, "update", 1.0)
    assert gpu.waits == 0
    assert timer.seconds() == pytest.approx({"rollout": 15.0, "update": 5.0})
    assert gpu.waits == 1
    assert timer.shares() == pytest.approx({"rollout": 0.75, "update": 0.25, "other": 0.0})
    assert gpu.waits == 1  # nothing new to wait for


@pytest.mark.gpu
def test_a_real_gpu_is_timed_by_its_own_clock() -> None:
    device = torch.device("cuda", 0)
    timer = StageTimer(device)
    x = torch.randn(2048, 2048, device=device)
    with timer("long"):
        for _ in range(50):
            x = torch.tanh(x @ x)
    with timer("short"):
        x = torch.tanh(x)
    seconds = timer.seconds()
    assert 0 < seconds["short"] < seconds["long"] <= timer.wall()
