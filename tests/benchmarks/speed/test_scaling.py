"""The cost of flying against its sizes, and what a step must do."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.helpers.command_line import with_overrides
from benchmarks.speed import scaling
from marl_framework.config.loading import load_config
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")


def test_scaling_writes_exponents_of_its_rows_and_a_figure(tmp_path, capsys):
    found = run(scaling, tmp_path, "--quick")
    assert [axis["axis"] for axis in found["axes"]] == ["missions", "uavs", "cells", "positions"]
    for axis, described in zip(found["axes"], scaling.AXES, strict=True):
        sizes = [row["size"] for row in axis["rows"]]
        assert [row["value"] for row in axis["rows"]] == list(described.quick)
        assert sizes == sorted(set(sizes))
        assert all(r["lower_quartile"] <= r["seconds_per_step"] for r in axis["rows"])
        half = len(sizes) // 2 + 1
        fitted = np.polyfit(
            np.log(sizes[-half:]), np.log([r["seconds_per_step"] for r in axis["rows"]][-half:]), 1
        )
        assert axis["exponent"] == pytest.approx(fitted[0])
    by_name = {axis["axis"]: axis for axis in found["axes"]}
    assert [row["size"] for row in by_name["cells"]["rows"]] == [103**2, 207**2]
    assert [row["size"] for row in by_name["positions"]["rows"]] == [6**2, 11**2]
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert "lattice positions" in capsys.readouterr().out


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.0])
def test_exponent_of_known_growth(exponent):
    sizes = [1, 2, 4, 8, 16, 32]
    grown = [1e-3 * size**exponent for size in sizes]
    assert scaling.fit_exponent(sizes, grown) == pytest.approx(exponent)
    assert scaling.fit_exponent(sizes[-2:], grown[-2:]) == pytest.approx(exponent)


def test_exponent_looks_at_the_larger_half_alone():
    sizes = [1, 2, 4, 8, 16, 32]
    seconds = [5.0, 5.0, 4.0, 8.0, 16.0, 32.0]
    assert scaling.fit_exponent(sizes, seconds) == pytest.approx(1)


def test_one_size_has_no_exponent():
    with pytest.raises(ValueError, match="two sizes"):
        scaling.fit_exponent([1], [1.0])


def test_every_size_suits_the_paper():
    config = load_config("params.yaml")
    for axis in scaling.AXES:
        changed = [with_overrides(config, *axis.setting(config, value)) for value in axis.values]
        sizes = [axis.size(one) for one in changed]
        assert sizes == sorted(set(sizes))
    sides = scaling.AXES[-1].values
    assert sizes == [side**2 for side in sides]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seconds-per-row", "0"], "--seconds-per-row 0"),
        (["--set", "environment.x_dim=3"], "lattice"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--out", "found.txt"], "must end in .json"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, complaint, tmp_path, capsys):
    assert complaint in refusal(scaling, tmp_path, capsys, *arguments)
