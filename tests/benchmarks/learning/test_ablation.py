from __future__ import annotations

import json

import pytest

from benchmarks.helpers import kept_runs
from benchmarks.learning import ablation
from marl_framework.config.loading import config_from_dict, config_to_dict, load_config
from marl_framework.config.loading import resolve_config_path as at

ARGUMENTS = ["--config", "params_test.yaml", "--device", "cpu", "--set", "evaluation.missions=2"]
TINY = ["--set", "evaluation.interval=1", "--steps", "2", "--seeds", "3"]


def run(out, *arguments):
    return ablation.main([*ARGUMENTS, *TINY, "--out", str(out), *arguments])


def test_runs_are_kept_and_not_made_again(tmp_path, capsys, monkeypatch):
    out = tmp_path / "ablation.json"
    assert run(out, "--variants", "kept") == 0
    first = json.loads(out.read_text())
    (only,) = first["runs"]
    assert [row["training_step"] for row in only["rows"]] == [1, 2]
    made = []
    learn = kept_runs.learn
    monkeypatch.setattr(kept_runs, "learn", lambda *a: made.append(a) or learn(*a))
    assert run(out, "--variants", "kept,not_clipped") == 0
    assert len(made) == 1  # the other was there
    second = json.loads(out.read_text())
    assert [one["variant"] for one in second["runs"]] == ["kept", "not_clipped"]
    assert second["runs"][0] == only
    assert out.with_suffix(".png").is_file()
    shown = capsys.readouterr().out
    assert "not_clipped" in shown
    assert "ROI entropy [bit]" in shown


def test_a_run_repeats_but_for_its_time(tmp_path):
    found = []
    for name in ("a.json", "b.json"):
        assert run(tmp_path / name, "--variants", "kept") == 0
        rows = json.loads((tmp_path / name).read_text())["runs"][0]["rows"]
        found.append([{**row, "seconds": 0} for row in rows])
    assert found[0] == found[1]


@pytest.mark.parametrize("variant", ablation.VARIANTS)
def test_every_variant_is_a_valid_configuration_that_differs(variant):
    base = load_config(at("params_fast.yaml"))
    changed = config_from_dict(config_to_dict(base), overrides=ablation.VARIANTS[variant])
    assert (changed == base) == (variant == "kept")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--variants", "best"], "--variants best"),
        (["--seeds", "3,x"], "--seeds 3,x"),
        (["--steps", "0"], "--steps 0"),
        (["--set", "evaluation.interval=0"], "evaluation.interval 0"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, arguments, named):
    assert run(tmp_path / "l.json", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert named in error
    assert error.count("\n") == 1
    assert not (tmp_path / "l.json").exists()


def test_runs_of_another_configuration_are_refused(tmp_path, capsys):
    out = tmp_path / "l.json"
    assert run(out, "--variants", "kept") == 0
    before = out.read_bytes()
    assert run(out, "--variants", "kept", "--set", "learning.gamma=0.5") == 2
    assert "another configuration" in capsys.readouterr().err
    assert out.read_bytes() == before
