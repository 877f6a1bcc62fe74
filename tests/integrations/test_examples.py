"""The examples run and learn something; a handful of small iterations each."""

from __future__ import annotations

import math

import pytest

from examples import torchrl_coma, torchrl_mappo


def test_mappo_trains_on_our_missions(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--config", "params_test.yaml", "--num-envs", "4", "--iterations", "3"]
    returns = torchrl_mappo.train(torchrl_mappo.parser().parse_args([*small, "--epochs", "1"]))
    assert len(returns) == 3
    assert all(math.isfinite(value) for value in returns)
    assert capsys.readouterr().out.count("return") == 3


def test_our_coma_loss_trains_on_vmas() -> None:
    small = ["--num-envs", "8", "--steps", "5", "--iterations", "3", "--minibatch", "20"]
    returns = torchrl_coma.train(torchrl_coma.parser().parse_args(small))
    assert len(returns) == 3
    assert all(math.isfinite(value) for value in returns)
