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


def test_unknown_numbers_are_left_out_and_known_ones_stay(
    stream: io.StringIO, clock: Clock
) -> None:
    with ProgressView(2, stream=stream, clock=clock) as view:
        view.update(1, {"return": 1.0})
        view.update(2, {"validation entropy": 0.5, "return": None})
    assert stream.getvalue().splitlines() == [
        "step 1/2 | return 1.000 | ETA 0:00:00",
        "step 2/2 | return 1.000 | validation entropy 0.5000 | ETA 0:00:00",
    ]


def shown_steps(stream: io.StringIO) -> list[int]:
    return [int(line.split()[1].split("/")[0]) for line in stream.getvalue().splitlines()]


def test_fast_steps_print_a_line_each_twentieth_of_the_training(
    stream: io.StringIO, clock: Clock
) -> None:
    with ProgressView(200, stream=stream, clock=clock) as view:
        for step in range(1, 201):
            clock.now += 0.01
            view.update(step)
    assert shown_steps(stream) == [1, *range(11, 200, 10), 200]


def test_slow_steps_print_a_line_each_ten_seconds(stream: io.StringIO, clock: Clock) -> None:
    with ProgressView(100_000, stream=stream, clock=clock) as view:
        for step in range(1, 10):
            clock.now += 4
            view.update(step)
    # after 4 s the first, then with 12 s between, and the last known at the end
    assert shown_steps(stream) == [1, 4, 7, 9]


def test_nothing_is_printed_twice_or_before_the_first_step(
    stream: io.StringIO, clock: Clock
) -> None:
    with ProgressView(3, stream=stream, clock=clock) as view:
        pass
    assert stream.getvalue() == ""
    with view:
        view.update(3)
        clock.now += 60
    assert shown_steps(stream) == [3]


def test_time_left_counts_from_the_step_that_was_resumed(stream: io.StringIO, clock: Clock) -> None:
    with ProgressView(1000, first_step=900, stream=stream, clock=clock) as view:
        clock.now += 80
        view.update(910)
    assert "ETA 0:12:00" in stream.getvalue()  # 10 steps in 80 s; 90 more in 720 s


def test_long_trainings_show_hours(stream: io.StringIO, clock: Clock) -> None:
    with ProgressView(1001, stream=stream, clock=clock) as view:
        clock.now += 100.5
        view.update(1)
    assert stream.getvalue().endswith("ETA 27:55:00\n")  # 1000 · 100.5 s


def test_lines_come_out_before_an_exception(stream: io.StringIO, clock: Clock) -> None:
    def train(view: ProgressView) -> None:
        view.update(1)
        view.update(2, {"return": 7.0})
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        ProgressView(1000, stream=stream, clock=clock) as view,
    ):
        train(view)
    assert shown_steps(stream) == [1, 2]
    assert "return 7.000" in stream.getvalue()


def test_messages_are_lines_of_their_own(stream: io.StringIO, clock: Clock) -> None:
    with ProgressView(10, stream=stream, clock=clock) as view:
        view.update(1)
        view.print("stopped [early]")
    assert stream.getvalue().splitlines()[1] == "stopped [early]"


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with ProgressView(10, clock=clock) as view:
        view.update(1)
    assert capsys.readouterr().out.startswith("step 1/10 |")


def test_a_terminal_gets_a_live_block_with_the_same_numbers(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with ProgressView(500, stream=stream, clock=clock) as view:
        clock.now += 50
        view.update(25, {"return": -1.25, "transitions/s": 12345.6})
        view.update(25, {"validation entropy": 0.5}, {"rollout": 0.6, "other": 0.4})
        view.print("a message [in brackets]")
    text = stream.getvalue()
    for part in (
        "training step 25/500",
        "-1.250",
        "0.5000",
        "12,346",
        "rollout 60%, other 40%",
        "0:15:50",
        "a message [in brackets]",
    ):
        assert part in text
    assert "\x1b" in text  # redrawn in place
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_the_live_block_ends_with_the_last_numbers_after_an_exception(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()

    def train() -> None:
        with ProgressView(9, stream=stream, clock=clock) as view:
            view.update(1)
            view.update(8, {"return": 0.125})
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        train()
    last = stream.getvalue().rsplit("training step", 1)[1]
    assert "8/9" in last
    assert "0.125" in last
    assert stream.getvalue().endswith("\x1b[?25h")


def test_a_dumb_terminal_gets_lines(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressView(5, stream=stream, clock=clock) as view:
        view.update(1)
    assert stream.getvalue() == "step 1/5 | ETA 0:00:00\n"
