"""Trainings with and without obstacles."""

from __future__ import annotations

import pytest

from benchmarks.helpers import kept_runs
from benchmarks.learning import no_fly
from marl_framework.config.loading import config_from_dict, config_to_dict, load_config
from tests.benchmarks.running import refusal, run

pytestmark = pytest.mark.usefixtures("quick")
TINY = ("--set", "evaluation.interval=1", "--steps", "1", "--seeds", "3")


def test_runs_are_written_and_not_made_again(tmp_path, capsys, monkeypatch):
    first = run(no_fly, tmp_path, *TINY, "--variants", "obstacles")
    (only,) = first["runs"]
    assert set(only["planners"]) == {"information_gain", "random"}
    made = []
    learn = kept_runs.learn
    monkeypatch.setattr(kept_runs, "learn", lambda *a: made.append(a) or learn(*a))
    second = run(no_fly, tmp_path, *TINY, "--variants", "open,obstacles")
    assert len(made) == 1
    assert second["runs"][0] == only
    other = second["runs"][1]
    assert other["planners"]["random"] != only["planners"]["random"]  # other ways to fly
    shown = capsys.readouterr().out
    assert "learned [95 %]" in shown
    assert f"{no_fly.entropy(other):.3f}" in shown


@pytest.mark.parametrize("variant", no_fly.VARIANTS)
def test_every_variant_is_a_valid_configuration(variant):
    base = load_config("params_fast.yaml")
    changed = config_from_dict(config_to_dict(base), overrides=no_fly.VARIANTS[variant])
    assert changed.missions.has_zones == (variant != "open")
    assert ("no_fly" in changed.observation.actor_channels) == (variant == "obstacles")


def test_bad_input_is_one_line(tmp_path, capsys):
    assert "--variants wall" in refusal(no_fly, tmp_path, capsys, "--variants", "wall")
    assert "--steps 0" in refusal(no_fly, tmp_path, capsys, "--steps", "0")
