"""What benchmarks read from a command line."""

from __future__ import annotations

import pytest

from benchmarks.helpers.command_line import Parser, parse_names, parse_numbers, read_options
from marl_framework.config.errors import ConfigError


def test_numbers_rise_and_come_once() -> None:
    assert parse_numbers("--agents", "16, 1,4,16", "1,4", most=16) == [1, 4, 16]
    assert parse_numbers("--seeds", "3,0", "3,4,5", most=9, least=0) == [0, 3]


@pytest.mark.parametrize("text", ["", "1,", "-1", "1.5", "²", "123456789", "0", "17"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--agents "):
        parse_numbers("--agents", text, "1,4", most=16)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    assert parse_names("--contenders", "b, a", ["a", "b"]) == ["b", "a"]
    with pytest.raises(ConfigError, match=r"--contenders c: choose from a, b"):
        parse_names("--contenders", "a,c", ["a", "b"])


def test_short_forms_win_over_set_and_a_cpu_benchmark_stays_there() -> None:
    given = ["--config", "params_test.yaml", "--set", "compute.device=cuda:99"]
    options = Parser("speed.some", "Some.").parse_args([*given, "--device", "cpu"])
    config, device, path = read_options(options, "some")
    assert (config.compute.device, device.type) == ("cpu", "cpu")
    assert path.name.startswith("some--")
    options = Parser("speed.some", "Some.", device=False).parse_args(given)
    assert read_options(options, "some")[1].type == "cpu"
