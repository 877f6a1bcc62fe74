"""The published way against batched maps, and wrong maps."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from benchmarks.speed import transformations
from benchmarks.speed.transformations_backends import (
    BACKENDS,
    CHANNELS,
    DIFFERS,
    Row,
    counted_cells,
)
from marl_framework.observations.builder import ObservationBuilder
from tests.benchmarks.running import FAR, run

pytestmark = pytest.mark.usefixtures("quick")
AGENTS = [1, 4]
FEW = ("--set", FAR, "--agents", "4,1")
NUMBERS = {field.name for field in fields(Row)} - {"backend", "status"}


def test_all_backends_are_measured_and_agree(tmp_path):
    found = run(transformations, tmp_path, *FEW)
    rows = {(row["backend"], row["agents"]): row for row in found["rows"]}
    assert list(rows) == [(backend, number) for number in AGENTS for backend in BACKENDS]
    for (backend, number), row in rows.items():
        if "cuda" in backend and not torch.cuda.is_available():
            assert row["seconds_per_observation"] is row["speedup"] is None
            continue
        assert row["status"] == "ok"
        assert all(isinstance(row[key], int | float) for key in NUMBERS)
        assert row["max_error"] < 1e-4
        assert row["lower_quartile"] <= row["seconds_per_observation"] <= row["upper_quartile"]
        for name, speedup in (("opencv", "speedup"), ("opencv windowed", "speedup_windowed")):
            theirs = rows[name, number]["seconds_per_observation"]
            assert row[speedup] == pytest.approx(theirs / row["seconds_per_observation"])


def test_a_wrong_map_is_noticed(tmp_path, monkeypatch):
    right = ObservationBuilder.actor
    monkeypatch.setattr(ObservationBuilder, "actor", lambda *given: right(*given) + 3e-4)
    rows = run(transformations, tmp_path, *FEW, "--agents", "4", code=1)["rows"]
    assert {r["backend"] for r in rows if r["status"] == DIFFERS} == {
        backend
        for backend in BACKENDS
        if backend.startswith("kornia") and (torch.cuda.is_available() or "cpu" in backend)
    }


def test_errors_are_largest_differences(recorded):
    seen = np.tile(recorded.expected, (2, 1, 1, 1))  # more UAVs than were flown
    assert recorded.largest_error(seen) == 0
    seen[-1, 2, 3, 0] += 0.25
    assert recorded.largest_error(seen) == pytest.approx(0.25)
    seen[-1, 2, 3, 0] = np.nan
    assert recorded.largest_error(seen) == math.inf


def test_cells_that_depend_on_rounding_are_left_out(recorded):
    expected = recorded.expected.copy()
    expected[0, 1, 1, CHANNELS.index("probability")] = 0.501 + 2e-6
    counted = counted_cells(recorded.plain, expected)
    assert not counted[0, 1, 1, CHANNELS.index("entropy")]
    assert counted[..., CHANNELS.index("probability")].all()
    assert counted.mean() > 0.99
