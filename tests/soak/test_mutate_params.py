"""Forty of the params files that `tests.soak.mutate_params` tries thousands of."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_framework.config.loading import config_to_dict, load_config
from tests.config.test_mutations import CHANGES, change
from tests.soak.mutate_params import mutate, outcome


@given(CHANGES, st.integers(min_value=0))
@settings(max_examples=40)
def test_a_mutated_file_trains_a_step_or_is_one_clear_line(
    changes: list[tuple[str, str, Any, str]], seed: int
) -> None:
    """Half of the files have one bad key after another, half are near to good ones."""
    tree = config_to_dict(load_config("params_test", ["compute.device=cpu"]))
    if seed % 2:
        mutate(tree, random.Random(seed))
    else:
        change(tree, changes)
    with tempfile.TemporaryDirectory() as folder:
        try:
            how, text = outcome(tree, Path(folder))
        except ValueError:  # more digits than Python writes
            assert not seed % 2
            return
    assert how in ("trained", "refused"), text


def test_the_harness_tells_a_crash_from_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = config_to_dict(load_config("params_test", ["compute.device=cpu"]))
    assert outcome(tree, tmp_path)[0] == "trained"
    monkeypatch.setattr("tests.soak.mutate_params.train", lambda _: 1 // 0)
    how, text = outcome(tree, tmp_path)
    assert how == "failed"
    assert "ZeroDivisionError" in text
