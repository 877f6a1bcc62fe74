"""The examples run and learn something; a handful of small iterations each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from examples import torchrl_coma, torchrl_mappo


@pytest.mark.parametrize(
    ("example", "small"),
    [
        (torchrl_mappo, "--config params_test.yaml --num-envs 4 --epochs 1"),
        (torchrl_coma, "--num-envs 8 --steps 5 --minibatch 20"),  # on VMAS
    ],
)
def test_an_example_trains(example: Any, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = example.parser().parse_args([*small.split(), "--iterations", "3"])
    returns = example.train(options)
    assert len(returns) == 3
    assert all(math.isfinite(value) for value in returns)
    assert capsys.readouterr().out.count("return") == 3


@pytest.mark.parametrize(
    ("example", "given"),
    [
        (torchrl_mappo, "--config nope.yaml"),
        (torchrl_mappo, "--iterations 0"),
        (torchrl_coma, "--scenario navigtion"),
        (torchrl_coma, "--iterations 0"),
    ],
)
def test_an_invalid_option_is_one_line(
    example: Any, given: str, refused: Callable[..., str]
) -> None:
    assert given.split()[1] in refused(example.main, given.split())
