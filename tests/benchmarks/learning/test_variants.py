"""Trainings with variants of a schedule, with obstacles, and with predicted maps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.helpers import trainings
from benchmarks.learning import ablation, no_fly, predicted, time_to_paper
from marl_framework.config.loading import config_from_dict, config_to_dict, load_config
from tests.benchmarks.running import run
from tests.small import small_config
from tests.teams import save_predictor

pytestmark = pytest.mark.usefixtures("quick")
TINY = ("--set", "evaluation.interval=1", "--set", "evaluation.missions=2", "--steps", "1")
ALL = [(m, variant) for m in (ablation, no_fly) for variant in m.VARIANTS]


@pytest.mark.parametrize(("module", "variant"), ALL, ids=lambda value: str(value)[-20:])
def test_every_variant_is_a_valid_configuration_that_differs(module, variant):
    base = load_config("params_fast.yaml")
    changed = config_from_dict(config_to_dict(base), overrides=module.VARIANTS[variant])
    assert (changed == base) == (variant in ("kept", "open"))
    assert changed.missions.has_zones == (module is no_fly and variant != "open")
    assert ("no_fly" in changed.observation.actor_channels) == (variant == "obstacles")


def test_validation_is_tabled_and_drawn(tmp_path, capsys):
    variants = ("--variants", "kept,one_pass", "--seeds", "3,4")
    found = run(ablation, tmp_path, *TINY, *variants)
    last = [one["rows"][-1]["f1"] for one in found["runs"] if one["variant"] == "one_pass"]
    assert f"{sum(last) / 2:.3f} ± " in capsys.readouterr().out
    assert (tmp_path / "found.png").stat().st_size > 0


def test_planners_fly_among_the_obstacles_of_the_team(tmp_path, capsys):
    found = run(no_fly, tmp_path, *TINY, "--variants", "open,obstacles", "--seeds", "3")
    without, among = found["runs"]
    assert set(among["planners"]) == {"information_gain", "random"}
    assert among["planners"]["random"] != without["planners"]["random"]
    assert f"{among['rows'][-1]['roi_entropy']:.3f}" in capsys.readouterr().out


def test_the_time_to_the_paper_ends_where_all_later_validations_are_below():
    curves = [[0.3, 0.28, 0.29, 0.28, 0.27], [0.28, 0.2, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2, 0.3]]
    runs = [
        {
            "variant": "float32",
            "rows": [
                {"roi_entropy": entropy, "f1": 0.8, "seconds": 10.0 * n, "transitions": 1000 * n,
                 "training_step": n}
                for n, entropy in enumerate(curve, 1)
            ],
        }
        for curve in curves
    ]  # fmt: skip
    assert "40, 10, –" in time_to_paper.table({"runs": runs})
    assert "2,500" in time_to_paper.table({"runs": runs[:2]})


def test_the_time_to_the_paper_is_that_of_its_mission(tmp_path, capsys, monkeypatch):
    seen, learn = [], trainings.learn
    monkeypatch.setattr(time_to_paper, "MAP", ("sensor.pixel.number_x=5",))
    monkeypatch.setattr(trainings, "learn", lambda *a: seen.extend(a) or learn(*a))
    run(time_to_paper, tmp_path, *TINY, "--variants", "float32", "--seeds", "3")
    trained, _, flown = seen
    assert (trained.experiment.missions.start, trained.compute.precision) == (
        "published",
        "float32",
    )
    assert flown.sensor.pixel.number_x == 5 != trained.sensor.pixel.number_x
    assert "float32" in capsys.readouterr().out


def test_each_seed_has_its_predictor(tmp_path, capsys, monkeypatch):
    files = [str(tmp_path / f"{seed}.pt") for seed in (3, 4)]
    for seed, file in enumerate(files):
        save_predictor(Path(file), small_config(), seed)
    seen, learn = [], trainings.learn
    monkeypatch.setattr(trainings, "learn", lambda c, d: seen.append(c) or learn(c, d))
    options = ("--predictors", ",".join(files), "--seeds", "3,4")
    found = run(predicted, tmp_path, *TINY, *options)
    assert [(one.environment.seed, one.networks.predictor) for one in seen] == [
        *[(3, files[0])] * 2,
        *[(4, files[1])] * 2,
    ]
    assert [one.observation.sees_prediction for one in seen] == [False, True] * 2
    f1 = {(one["variant"], one["seed"]): one["rows"][-1]["f1"] for one in found["runs"]}
    change = sum(f1["predicted", seed] - f1["without", seed] for seed in (3, 4)) / 2
    assert f"{change:+.3f}" in capsys.readouterr().out
