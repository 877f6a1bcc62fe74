"""The cost of flying against its sizes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.helpers.command_line import with_overrides
from benchmarks.speed import scaling
from marl_framework.config.loading import load_config
from tests.benchmarks.running import run


@pytest.mark.usefixtures("quick")
def test_scaling_writes_exponents_of_its_rows_and_a_figure(tmp_path, capsys):
    found = run(scaling, tmp_path, "--quick")
    sizes = {}
    for axis, described in zip(found["axes"], scaling.AXES, strict=True):
        rows = axis["rows"]
        sizes[axis["axis"]] = [row["size"] for row in rows]
        assert [row["value"] for row in rows] == list(described.quick)
        assert all(r["lower_quartile"] <= r["seconds_per_step"] for r in rows)
        half = rows[-(len(rows) // 2 + 1) :]
        x, y = (np.log([row[name] for row in half]) for name in ("size", "seconds_per_step"))
        assert axis["exponent"] == pytest.approx(np.polyfit(x, y, 1)[0])
    assert sizes == {
        "missions": [1, 2, 4, 8],
        "uavs": [1, 2, 4],
        "cells": [103**2, 207**2],
        "positions": [6**2, 11**2],
    }
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert all(axis["label"] in capsys.readouterr().out for axis in found["axes"][-1:])


def test_every_size_fits_the_paper():
    config = load_config("params.yaml")
    for axis in scaling.AXES:
        changed = [with_overrides(config, *axis.setting(config, value)) for value in axis.values]
        sizes = [axis.size(one) for one in changed]
        assert sizes == sorted(set(sizes))
