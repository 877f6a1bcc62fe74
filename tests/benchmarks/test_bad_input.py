"""Bad input of benchmarks ends with one line, exit code 2 and no file."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.benchmarks.running import SMALL

pytestmark = pytest.mark.usefixtures("quick")
SHARED = [
    ("--seconds-per-row 0", "--seconds-per-row"),
    ("--seconds-per-row nan", "--seconds-per-row"),
    ("--config nowhere.yaml", r"nowhere\.yaml"),
    ("--set environment.sed=1", r"environment\.sed"),
    ("--set compute.device=cuda:99", r"compute\.device"),
    ("--out found.txt", "--out"),
    ("--out {folder}/file/below/a.json", "--out"),
    ("--no-such-option", "--no-such-option"),
]
"""Arguments, and a pattern of the name in the line."""
OWN = {
    "learning.ablation": ["--variants best", "--seeds 3,x", "--set evaluation.interval=0"],
    "learning.time_to_paper": ["--variants float16"],
    "learning.algorithms": ["--algorithms vdn", "--worlds moon", "--development-seeds 3"],
    "learning.adaptive": ["--terrains moon", "--teams nobody", "--missions 1"],
    "learning.no_fly": ["--variants wall"],
    "learning.predicted": ["--predictors runs/x", "--predictors runs/x,runs/y,runs/z"],
    "learning.radio": ["--policies nobody", "--missions 1"],
    "learning.sample_reuse": ["--kl-limit -1", "--passes 0", "--seeds 0"],
    "learning.search_settings": ["--predictors=", "--predictors runs/x", "--missions 1"],
    "speed.areas": ["--teams 128 --sides 10"],
    "speed.ranks": ["--steps 0"],
    "speed.rollout": ["--num-envs 2000000", "--policy greedy"],
    "speed.training": ["--steps many", "--precision float8"],
    "speed.transformations": ["--agents 1,x", "--agents 5"],
    "speed.utilisation": ["--processes 0", "--batch 0"],
    "speed.wrappers": ["--num-envs 1,x"],
}
"""Arguments whose option or key the line names."""
KEYS = {
    "learning.ablation": ("--steps 0", r"learning\.training_steps"),
    "speed.scaling": ("--set environment.x_dim=3", r"environment\.x_dim"),
    "speed.training": ("--precision float16", r"compute\.precision"),
}
"""Options whose key of the params file the line names."""


def _named(arguments: str) -> str:
    option, _, value = arguments.partition(" ")
    return re.escape(value.partition("=")[0] if option == "--set" else option.rstrip("="))


CASES = [("speed.network_types", *case) for case in SHARED]
CASES += [(module, *case) for module, case in KEYS.items()]
CASES += [(module, text, _named(text)) for module, texts in OWN.items() for text in texts]


@pytest.mark.parametrize(("module", "arguments", "named"), CASES)
def test_bad_input_is_one_line_and_leaves_no_file(module, arguments, named, tmp_path, refused):
    (tmp_path / "file").touch()
    given = [*SMALL, "--out", tmp_path / "a.json", *arguments.format(folder=tmp_path).split()]
    error = refused(import_module(f"benchmarks.{module}"), *given)
    assert re.search(named, error)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
