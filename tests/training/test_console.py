from __future__ import annotations

import io

import pytest

from marl_framework.training.console import ProgressView
from tests.terminal import Clock, Terminal


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_a_line_holds_all_numbers(stream: io.StringIO, clock: Clock) -> None:
    with ProgressView(500, stream=stream, clock=clock) as view:
        clock.now += 50
        view.update(
            25,
            {"return": -1.25, "validation entropy": 0.43215, "transitions/s": 12345.6},
            {"rollout": 0.604, "update": 0.3, "other": 0.096},
        )
    # 25 steps took 50 s, so 475 take 950 s = 15 min 50 s
    assert stream.getvalue() == (
        "step 25/500 | return -1.250 | validation entropy 0.4321 | transitions/s 12,346 | "
        "time rollout 60%, update 30%, other 10% | ETA 0:15:50\n"
    )


def test_unknown_numbers_are_left_out_and_known_ones_stay(stream, clock: Clock) -> None:
    with ProgressView(2, stream=stream, clock=clock) as view:
        view.update(1, {"return": 1.0})
        view.update(2, {"validation entropy": 0.5, "return": None})
    assert stream.getvalue().splitlines() == [
        "step 1/2 | return 1.000 | ETA 0:00:00",
        "step 2/2 | return 1.000 | validation entropy 0.5000 | ETA 0:00:00",
    ]


def shown_steps(stream: io.StringIO) -> list[int]:
    return [int(line.split()[1].split("/")[0]) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("total", "steps", "seconds", "shown"),
    [
        (200, 200, 0.01, [1, *range(11, 200, 10), 200]),  # each twentieth of the training
        (100_000, 9, 4, [1, 4, 7, 9]),  # the first, each after 10 s, and the last
    ],
)
def test_lines_come_by_steps_or_by_time(
    total: int, steps: int, seconds: float, shown: list[int], stream: io.StringIO, clock: Clock
) -> None:
    with ProgressView(total, stream=stream, clock=clock) as view:
        for step in range(1, steps + 1):
            clock.now += seconds
            view.update(step)
    assert shown_steps(stream) == shown


def test_nothing_is_printed_twice_or_before_the_first_step(stream, clock: Clock) -> None:
    with ProgressView(3, stream=stream, clock=clock) as view:
        pass
    assert stream.getvalue() == ""
    with view:
        view.update(3)
        clock.now += 60
    assert shown_steps(stream) == [3]


@pytest.mark.parametrize(
    ("total", "first", "step", "seconds", "left"),
    [(1000, 900, 910, 80, "0:12:00"), (1001, 0, 1, 100.5, "27:55:00")],
)
def test_time_left_counts_from_the_step_that_was_resumed(
    total: int, first: int, step: int, seconds: float, left: str, stream, clock: Clock
) -> None:
    with ProgressView(total, first, stream, clock) as view:
        clock.now += seconds
        view.update(step)
    assert stream.getvalue().endswith(f"ETA {left}\n")


def test_lines_come_out_before_an_exception(stream: io.StringIO, clock: Clock) -> None:
    def train(view: ProgressView) -> None:
        view.update(1)
        view.print("stopped [early]")
        view.update(2, {"return": 7.0})
        raise KeyboardInterrupt

    view = ProgressView(1000, stream=stream, clock=clock)
    with pytest.raises(KeyboardInterrupt), view:
        train(view)
    first, message, last = stream.getvalue().splitlines()
    assert first.startswith("step 1/")
    assert message == "stopped [early]"
    assert last.startswith("step 2/1000 | return 7.000")


def test_standard_output_is_the_default(capsys, clock: Clock) -> None:
    with ProgressView(10, clock=clock) as view:
        view.update(1)
    assert capsys.readouterr().out.startswith("step 1/10 |")


def test_a_terminal_gets_a_live_block_that_ends_with_the_last_numbers(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    def train(view: ProgressView) -> None:
        clock.now += 50
        view.update(25, {"return": -1.25, "transitions/s": 12345.6})
        view.print("a message [in brackets]")
        view.update(25, {"validation entropy": 0.5}, {"rollout": 0.6, "other": 0.4})
        raise RuntimeError("lost")

    stream = Terminal()
    view = ProgressView(500, stream=stream, clock=clock)
    with pytest.raises(RuntimeError, match="lost"), view:
        train(view)
    text = stream.getvalue()
    assert "a message [in brackets]" in text
    last = text.rsplit("training step", 1)[1]
    for part in ("25/500", "-1.250", "0.5000", "12,346", "rollout 60%, other 40%", "0:15:50"):
        assert part in last
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    assert text.endswith("\x1b[?25h")


def test_a_dumb_terminal_gets_lines(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressView(5, stream=stream, clock=clock) as view:
        view.update(1)
    assert stream.getvalue() == "step 1/5 | ETA 0:00:00\n"
