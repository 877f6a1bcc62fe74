"""Statistics of a suite's flights, and their tables."""

from __future__ import annotations

import pytest
import torch

from marl_framework.evaluation import suite_results
from marl_framework.evaluation.flight import COMPLETED
from marl_framework.evaluation.statistics import worst_tenth
from marl_framework.evaluation.suite import SIGNS


def test_a_verdict_follows_the_side_of_the_interval() -> None:
    def constant(entropy: float, f1: float) -> dict[str, list[list[float]]]:
        noise = torch.linspace(-0.01, 0.01, 9)
        return {"roi_entropy": [(noise + entropy).tolist()], "f1": [(noise.flip(0) + f1).tolist()]}

    found = suite_results.summary(
        {
            "learned": constant(0.2, 0.7),
            "information_gain": constant(0.3, 0.8),
            "coverage": constant(0.3, 0.9),
        },
        None,
    )
    verdicts = {
        (policy, metric): row["difference"] and row["difference"]["verdict"]
        for policy, rows in found.items()
        for metric, row in rows.items()
    }
    assert verdicts == {
        ("learned", "roi_entropy"): "better",
        ("learned", "f1"): "worse",
        ("information_gain", "roi_entropy"): None,  # the reference: the first of equals
        ("information_gain", "f1"): "worse",
        ("coverage", "roi_entropy"): "undecided",
        ("coverage", "f1"): None,
    }
    assert found["learned"]["f1"]["difference"]["reference"] == "coverage"


def test_a_worst_tenth_is_set_against_the_best_one_and_shown() -> None:
    steady, varying = torch.full((20,), 0.3), torch.linspace(0.1, 0.4, 20)
    entropies = {"learned": varying - 0.05, "information_gain": varying, "coverage": steady}
    finals = {
        policy: {metric: [values.tolist()] for metric in SIGNS}
        for policy, values in entropies.items()
    }
    found = suite_results.summary(finals, None)
    row = found["learned"]["roi_entropy"]
    assert row["difference"]["reference"] == "information_gain"  # lower on average
    worst = row["worst_tenth"]
    assert worst["mean"] == pytest.approx((varying[-2:].mean() - 0.05).item())
    assert worst["difference"]["reference"] == "coverage"
    change = worst_tenth(*(torch.tensor(finals["learned"]["f1"]), -1, None, steady[None]))
    assert worst["difference"]["mean"] == pytest.approx(change["mean"])
    assert worst["difference"]["interval"] == pytest.approx(change["interval"])
    assert found["coverage"]["roi_entropy"]["worst_tenth"]["difference"] is None
    assert found["information_gain"]["roi_entropy"]["worst_tenth"]["difference"]["verdict"] == (
        "worse"
    )
    sizes = {"missions": 20, "standard_missions": 20, "seed": 1, "standard_seed": 1}
    left = [f"world_{number}" for number in range(70)]
    content = {"suite": "standard", "version": 1, "teams": [], "predictors": [], "left_out": left}
    text = suite_results.table({**content, **sizes, "worlds": {"split": {"summary": found}}})
    last = text.splitlines()[-1]
    assert "70: world_0, world_1" in last
    assert len(last) < 150
    _, _, second = text.partition("Worst tenth")
    second, _, third = second.partition("Completed maps")
    (line,) = (line for line in third.splitlines() if " information_gain " in line)
    for metric in COMPLETED:
        assert suite_results.change_cells(found["information_gain"][metric])[0] in line
    (line,) = (line for line in second.splitlines() if " information_gain " in line)
    shown = suite_results.change_cells(found["information_gain"]["roi_entropy"]["worst_tenth"])
    assert line.split()[1:5] == [*shown[0].split(), "worse"]
    reliability = suite_results.change_cells(found["information_gain"]["brier"])
    assert " ".join(reliability[::2]).strip() in " ".join(line.split())
