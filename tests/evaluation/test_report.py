"""Tables, and files that any strict JSON reader takes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from marl_framework.evaluation import report
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.evaluation.statistics import paired_difference, statistics, worst_tenth
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import RandomPlanner
from marl_framework.runs.files import write_json
from tests.small import small_config


def fly_twice(missions: int = 3) -> dict[str, FlightRecord]:
    env = MissionEnvironment(small_config(max_altitude=10.0), missions, "cpu", "test")
    planner = RandomPlanner(env.lattice)
    return {
        "ours": evaluate(env, planner, missions, 1),
        "theirs": evaluate(env, planner, missions, 2),
    }


def test_one_mission_has_no_spread() -> None:
    text = report.table_text(report.results({"random": fly_twice(1)["ours"]}, {}, {}))
    assert "1 mission, after" in text
    assert "nan" not in text
    assert "orst tenth" not in text


def test_missions_over_a_map_are_counted_in_blocks(tmp_path: Path) -> None:
    np.save(tmp_path / "map.npy", np.random.default_rng(0).random((200, 90)))
    raster = {"path": str(tmp_path / "map.npy"), "resolution": 1.5}
    config = small_config(
        max_altitude=10.0, sensor={"simulation": {"kinds": ("raster", "band"), "raster": raster}}
    )
    env = MissionEnvironment(config, 4, "cpu", "test")
    planner = RandomPlanner(env.lattice)
    record = evaluate(env, planner, 10, 1)  # in batches of 4, 4 and 2
    assert record.window_origins is not None
    assert record.window_origins.shape == (10, 2)
    blocks = report.mission_blocks(record)
    assert blocks is not None
    elsewhere = record.window_origins.isnan().any(1)
    assert 0 < elsewhere.sum() < 10
    assert len(blocks[elsewhere].unique()) == elsewhere.sum()
    assert len(blocks[~elsewhere].unique()) < (~elsewhere).sum()
    found = report.results({"random": record, "again": record}, {}, {})
    assert found["blocks"] == blocks.tolist()
    values = record.metrics["f1"][:, -1]
    worst = {"worst_tenth": worst_tenth(values[None], 1, blocks)}
    assert found["summary"]["random"]["f1"] == statistics(values, blocks) | worst
    assert f"10 missions, {len(blocks.unique())} blocks of ground" in report.table_text(found)


def test_others_are_set_against_the_best_classical_planner() -> None:
    ours, theirs = ({"roi_entropy": {"mean": mean}} for mean in (0.2, 0.4))
    assert (
        report.reference_policy({"learned": ours, "random": theirs, "coverage": ours}) == "coverage"
    )
    assert report.reference_policy({"oracle": ours, "random": theirs}) == "random"
    assert report.reference_policy({"learned": theirs, "oracle": ours}) == "learned"


def test_the_table_shows_means_deviations_and_paired_differences() -> None:
    records = fly_twice()
    text = report.table_text(report.results(records, {}, {}))
    lines = text.splitlines()
    at = next(k for k, line in enumerate(lines) if "ROI entropy [bit]" in line)
    ours, theirs = (record.metrics["roi_entropy"][:, -1].double() for record in records.values())
    found = statistics(theirs)
    difference = paired_difference(theirs, ours)
    low, high = found["iqm_interval"]
    least, most = difference["interval"]
    assert lines[at + 1].split() == [
        "theirs",
        *(f"{theirs.mean():.4f}", "±", f"{theirs.std():.4f}"),
        *(f"{found['iqm']:.4f}", f"[{low:.4f},", f"{high:.4f}]"),
        *(f"{difference['mean']:+.4f}", f"[{least:+.4f},", f"{most:+.4f}]"),
    ]
    assert lines[at].split()[3:7] == ["ours", f"{ours.mean():.4f}", "±", f"{ours.std():.4f}"]
    assert "− ours [95 %]" in text
    assert "readings at 10 m" in text
    assert "planning a move [ms]" in text


def test_the_second_table_shows_worst_tenths_and_their_differences() -> None:
    records = fly_twice(12)
    found = report.results(records, {}, {})
    _, _, text = report.table_text(found).partition("Worst tenth")
    rows = [line.split() for line in text.splitlines()]
    for metric, label, sign in (("roi_entropy", "ROI entropy [bit]", -1), ("f1", "F1", 1)):
        ours, theirs = (record.metrics[metric][None, :, -1] for record in records.values())
        first, second = worst_tenth(ours, sign), worst_tenth(theirs, sign)
        change = worst_tenth(theirs, sign, None, ours)
        assert found["summary"]["ours"][metric]["worst_tenth"] == first
        assert found["differences"]["theirs - ours"][metric]["worst_tenth"] == change
        cells = report.with_interval(second["mean"], second["interval"]).split()
        cells += report.with_interval(change["mean"], change["interval"], "+").split()
        at = rows.index(["theirs", *cells])
        cells = report.with_interval(first["mean"], first["interval"]).split()
        assert rows[at - 1] == [*label.split(), "ours", *cells]


def test_results_hold_missions_times_rounds_in_strict_json(tmp_path: Path) -> None:
    records = fly_twice()
    settings = {"seed": 1, "range": math.inf, "below": -math.inf, "unknown": math.nan}
    path = tmp_path / "results.json"
    write_json(path, report.results(records, settings, {"device": "here"}))

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert found["settings"] == {"seed": 1, "range": "inf", "below": "-inf", "unknown": None}
    assert found["machine"] == {"device": "here"}
    assert list(found["policies"]) == ["ours", "theirs"]
    for name, record in records.items():
        for metric, values in record.metrics.items():
            written = torch.tensor(found["policies"][name][metric])
            assert written.shape == (3, record.config.missions.episode_length + 2)
            assert torch.equal(written, values)
        assert len(found["policies"][name]["path_length"]) == 3
        assert np.shape(found["policies"][name]["altitude_shares"]) == (3, 2)
        mean = found["summary"][name]["f1"]["mean"]
        assert mean == pytest.approx(record.metrics["f1"][:, -1].mean().item(), rel=1e-6)
    entropy = [found["summary"][name]["roi_entropy"]["mean"] for name in records]
    difference = found["differences"]["theirs - ours"]["roi_entropy"]["mean"]
    assert difference == pytest.approx(entropy[1] - entropy[0])
