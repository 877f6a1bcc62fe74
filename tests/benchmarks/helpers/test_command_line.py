"""Options of benchmarks, and results as text."""

from __future__ import annotations

import pytest

from benchmarks.helpers.command_line import Parser, names_of
from benchmarks.helpers.text import duration_text
from tests.benchmarks.running import CONFIG, read_strict


def test_numbers_rise_and_names_come_once() -> None:
    parser = Parser("speed.some", "Some.")
    parser.add_numbers("--agents", "16, 1,4,16", "UAVs", most=16)
    assert parser.parse_args([]).agents == [1, 4, 16]
    assert names_of(["a", "b"])("b, a,b") == ["b", "a"]


@pytest.mark.parametrize("text", ["", "1,", "-1", "1.5", "²", "123456789", "0", "17"])
def test_other_numbers_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("speed.some", "Some.")
    parser.add_numbers("--agents", "1,4", "UAVs", most=16)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([f"--agents={text}"])
    assert "--agents" in capsys.readouterr().err


@pytest.mark.parametrize("choice", [True, False])
def test_options_win_over_set(choice, quick, tmp_path) -> None:
    """A benchmark without `--device` stays on the CPU."""
    parser = Parser("speed.some", "Some.", device=choice)
    parser.add_key("--steps", "learning.training_steps", 7)
    given = [*CONFIG, "--set", "compute.device=cuda:99", "--set", "learning.training_steps=8"]
    given += [*(["--device", "cpu"] if choice else []), "--out", str(tmp_path / "a.json")]
    jobs = []
    assert parser.publish(given, lambda job: jobs.append(job) or {"settings": {"a": 1}}, str) == 0
    (job,) = jobs
    assert (job.device.type, job.config.learning.training_steps) == ("cpu", 7)
    found = read_strict(tmp_path / "a.json")
    assert found["suite"] == "some"
    assert found["settings"]["a"] == 1
    assert found["settings"]["configuration"]["learning"]["training_steps"] == 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (2.0, "2 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 µs"), (7.89e-9, "7.89 ns"),
     (9.996e-4, "1 ms"), (0.9999, "1 s"), (-3.4e-3, "−3.4 ms")],
)  # fmt: skip
def test_durations_have_three_digits(seconds, text):
    assert duration_text(seconds) == text
