"""Trainings that are cached in a JSON, and their validation curves."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from benchmarks.helpers import trainings
from benchmarks.learning import ablation, no_fly
from marl_framework.config.loading import load_config
from tests.benchmarks.running import SMALL, run

pytestmark = pytest.mark.usefixtures("quick")
TINY = ["--set", "evaluation.missions=2", "--set", "evaluation.interval=1", "--seeds", "3"]
TINY += ["--steps", "2"]


def test_runs_are_kept_and_repeat_except_for_their_time(tmp_path, monkeypatch):
    first = run(ablation, tmp_path, *TINY, "--variants", "kept")
    (only,) = first["runs"]
    assert [row["training_step"] for row in only["rows"]] == [1, 2]
    made, learn = [], trainings.learn
    monkeypatch.setattr(trainings, "learn", lambda *a: made.append(a) or learn(*a))
    second = run(ablation, tmp_path, *TINY, "--variants", "kept,not_clipped")
    assert len(made) == 1
    assert [one["variant"] for one in second["runs"]] == ["kept", "not_clipped"]
    assert second["runs"][0] == only
    again = run(ablation, tmp_path / "new", *TINY, "--variants", "kept")["runs"][0]["rows"]
    times = {"seconds": 0, "cpu_seconds": 0}
    assert [row | times for row in again] == [row | times for row in only["rows"]]


def test_files_of_others_are_refused_and_stay(tmp_path, refused):
    run(ablation, tmp_path, *TINY, "--variants", "kept")
    out = tmp_path / "found.json"
    before = out.read_bytes()
    given = [*SMALL, *TINY, "--out", out]
    assert str(out) in refused(ablation, *given, "--set", "learning.gamma=0.5")
    assert "ablation" in refused(no_fly, *given)
    assert out.read_bytes() == before
    content = json.loads(before)
    del content["settings"]["variants"]
    for other in ([], content):
        out.write_text(json.dumps(other))
        assert str(out) in refused(ablation, *given)


def test_runs_of_a_changed_variant_are_dropped(tmp_path, config):
    saved = []
    job = SimpleNamespace(path=tmp_path / "a.json", config=config, suite="some", save=saved.append)
    cache = trainings.Cache(job, {"a": ["x=1"], "b": []})
    for name in ("a", "b"):
        cache.add(variant=name, seed=3)
    assert saved == [cache.results] * 2
    trainings.Job.save(
        trainings.Job(None, config, None, {}, job.path, "some"),  # type: ignore[arg-type]
        cache.results,
    )
    later = trainings.Cache(job, {"a": ["x=2"], "b": []})
    assert later.runs == [{"variant": "b", "seed": 3}]
    assert later.has(variant="b", seed=3)
    assert not later.has(variant="b", seed=4)


@pytest.mark.parametrize(("value", "kept"), [("default", True), ("other", False)])
def test_runs_from_before_a_key_existed_are_kept_at_its_default(tmp_path, config, value, kept):
    if value == "other":
        config = trainings.with_overrides(config, "learning.tau=0.3")
    job = SimpleNamespace(path=tmp_path / "a.json", config=config, suite="some")
    settings = {"variants": {"a": []}, "configuration": trainings.config_to_dict(config)}
    settings["configuration"] = json.loads(json.dumps(trainings.strict(settings["configuration"])))
    del settings["configuration"]["learning"]["tau"]
    runs = [{"variant": "a", "seed": 3}]
    job.path.write_text(json.dumps({"suite": "some", "settings": settings, "runs": runs}))
    if kept:
        assert trainings.Cache(job, {"a": []}).runs == runs
    else:
        with pytest.raises(trainings.ConfigError, match="another configuration"):
            trainings.Cache(job, {"a": []})


def test_a_training_without_validation_is_refused():
    config = load_config("params_test.yaml", ["evaluation.interval=0"])
    with pytest.raises(trainings.ConfigError, match=r"evaluation\.interval"):
        trainings.learn(config, trainings.torch.device("cpu"))


def test_the_last_fifth_is_at_least_one_value():
    assert trainings.last_fifth([1.0, 2.0]) == 2.0
    assert trainings.last_fifth([float(n) for n in range(10)]) == 8.5
