"""Statistics against scipy, and files that any strict JSON reader takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from marl_framework.evaluation import report
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.planners import RandomPlanner
from tests.small import small_config


def fly_twice(missions: int = 3) -> dict[str, FlightRecord]:
    env = MissionEnvironment(small_config(max_altitude=10.0), missions, "cpu", "test")
    planner = RandomPlanner(env.lattice)
    return {
        "ours": evaluate(env, planner, missions, 1),
        "theirs": evaluate(env, planner, missions, 2),
    }


def test_statistics_equal_scipy() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(0))
    found = report.statistics(values)
    sample = values.double().numpy()
    assert found.mean == pytest.approx(np.mean(sample))
    assert found.std == pytest.approx(np.std(sample, ddof=1))
    assert found.standard_error == pytest.approx(stats.sem(sample))


def test_a_paired_difference_is_what_a_paired_t_test_uses() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = torch.rand(30, generator=generator)
    theirs = ours + 0.1 * torch.randn(30, generator=generator)  # paired far better than unpaired
    found = report.paired_difference(ours, theirs)
    t = stats.ttest_rel(ours.double().numpy(), theirs.double().numpy()).statistic
    assert found.standard_error is not None
    assert found.mean / found.standard_error == pytest.approx(t)
    with pytest.raises(ValueError, match="cannot pair 30 and 2 missions"):
        report.paired_difference(ours, theirs[:2])


def test_one_mission_has_no_spread() -> None:
    assert report.statistics(torch.tensor([0.3])) == report.Statistics(
        pytest.approx(0.3), None, None, pytest.approx(0.3), None
    )
    difference = report.paired_difference(torch.tensor([0.3]), torch.tensor([0.1]))
    assert difference == report.Difference(pytest.approx(0.2), None, None, None)
    text = report.table_text({"random": fly_twice(1)["ours"]})
    assert "1 mission, after" in text
    assert "nan" not in text


def test_interquartile_means_and_intervals_equal_scipy() -> None:
    values = torch.rand(43, generator=torch.Generator().manual_seed(4)).double() ** 3
    sample = values.numpy()
    found = report.statistics(values)
    assert found.iqm == pytest.approx(stats.trim_mean(sample, 0.25))

    def bootstrap(statistic: Callable[..., Any]) -> tuple[float, float]:
        done = stats.bootstrap(
            (sample,),
            statistic,
            n_resamples=4000,
            method="percentile",
            rng=np.random.default_rng(1),
        )
        return done.confidence_interval

    of_iqm = bootstrap(lambda x, axis: stats.trim_mean(x, 0.25, axis=axis))
    assert found.iqm_interval == pytest.approx(of_iqm, abs=0.006)
    difference = report.paired_difference(values, torch.zeros_like(values))
    assert difference.interval == pytest.approx(bootstrap(np.mean), abs=0.006)
    assert report.statistics(values) == found  # resampling repeats


def test_others_are_set_against_the_best_classical_planner() -> None:
    ours, theirs = fly_twice(4).values()
    for record, entropy in ((ours, 0.2), (theirs, 0.4)):
        record.metrics["roi_entropy"][:, -1] = entropy
    assert report.yardstick({"learned": ours, "random": theirs, "coverage": ours}) == "coverage"
    assert report.yardstick({"oracle": ours, "random": theirs}) == "random"
    assert report.yardstick({"learned": theirs, "oracle": ours}) == "learned"


def test_the_table_shows_means_deviations_and_paired_differences() -> None:
    records = fly_twice()
    text = report.table_text(records)
    lines = text.splitlines()
    at = next(k for k, line in enumerate(lines) if "ROI entropy [bit]" in line)
    ours, theirs = (record.metrics["roi_entropy"][:, -1].double() for record in records.values())
    found = report.statistics(theirs)
    difference = report.paired_difference(theirs, ours)
    assert found.iqm_interval is not None
    assert difference.interval is not None
    assert lines[at + 1].split() == [
        "theirs",
        *(f"{theirs.mean():.4f}", "±", f"{theirs.std():.4f}"),
        *(f"{found.iqm:.4f}", f"[{found.iqm_interval[0]:.4f},", f"{found.iqm_interval[1]:.4f}]"),
        f"{difference.mean:+.4f}",
        *(f"[{difference.interval[0]:+.4f},", f"{difference.interval[1]:+.4f}]"),
    ]
    assert lines[at].split()[3:7] == ["ours", f"{ours.mean():.4f}", "±", f"{ours.std():.4f}"]
    assert "− ours [95 %]" in text
    assert "readings at 10 m" in text
    assert "planning a move [ms]" in text


def test_results_hold_missions_times_rounds_in_strict_json(tmp_path: Path) -> None:
    records = fly_twice()
    settings = {"seed": 1, "range": math.inf, "below": -math.inf, "unknown": math.nan}
    path = tmp_path / "results.json"
    report.write_results(report.results(records, settings, {"device": "here"}), path)

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert found["settings"] == {"seed": 1, "range": "inf", "below": "-inf", "unknown": None}
    assert found["machine"] == {"device": "here"}
    assert list(found["policies"]) == ["ours", "theirs"]
    for name, record in records.items():
        for metric, values in record.metrics.items():
            written = torch.tensor(found["policies"][name][metric])
            assert written.shape == (3, record.config.episode_length + 2)
            assert torch.equal(written, values)
        assert len(found["policies"][name]["path_length"]) == 3
        assert np.shape(found["policies"][name]["altitude_shares"]) == (3, 2)
        mean = found["summary"][name]["f1"]["mean"]
        assert mean == pytest.approx(record.metrics["f1"][:, -1].mean().item(), rel=1e-6)
    entropy = [found["summary"][name]["roi_entropy"]["mean"] for name in records]
    difference = found["differences"]["theirs - ours"]["roi_entropy"]["mean"]
    assert difference == pytest.approx(entropy[1] - entropy[0])
