"""No params file crashes a training.

Files are `params_test.yaml` with keys of another type, out of range, missing, extra, huge or not a
number. Each must either train a step, or end with exit code 2 and one line that names a key. Before
the step the work of accepted files is reduced; more than 1 GiB counts as too much memory.
"""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marl_framework import device
from marl_framework.config.loading import config_to_dict, load_config
from marl_framework.config.messages import KEYS, SECTIONS
from marl_framework.config.yaml_text import format_yaml
from marl_framework.main import main as train
from marl_framework.training import memory
from marl_framework.training.outputs import Outputs
from tests.config.test_mutations import NAMES, ODD, change, node_of
from tests.soak.commands import TIMES

pytestmark = pytest.mark.soak
MOST_MEMORY = 2**30
MOST_WORK = {
    "environment.num_envs": 4,
    "experiment.constraints.budget": 4,
    "learning.training_steps": 1,
    "evaluation.missions": 2,
    "learning.data_passes": 1,
    "learning.batch_size": 32,
    "learning.batch_number": 2,
}
KINDS = st.sampled_from(["near", "near", "set", "drop", "add"])
FACTORS = st.sampled_from([0, 0.5, 1.5, 2, 3, 10, 1000])


def mutate(tree: dict[str, Any], path: str, kind: str, value: Any, factor: float) -> None:
    """Change a key in place; `near` gives numbers and booleans of the same type."""
    node, leaf = node_of(tree, path), path.rpartition(".")[2]
    old = node.get(leaf)
    if kind == "near" and isinstance(old, bool):
        node[leaf] = not old
    elif kind == "near" and isinstance(old, int | float):
        with contextlib.suppress(OverflowError, ValueError):  # infinity is no int
            node[leaf] = type(old)(old * factor)
    else:
        change(tree, [(path, "set" if kind == "near" else kind, value, f"{leaf}_")])


def outcome(tree: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """Train a step; return `trained`, `refused` or `failed`, and what was printed.

    Args:
        tree: plain data of a params file.
        folder: empty folder for the file and the run.
    """
    file = folder / "mutated.yaml"
    file.write_text(format_yaml(tree), encoding="utf-8")
    sets = [f"logging.directory={folder / 'runs'}"]
    code, text = _main("--check", "--config", str(file), *_sets(sets))
    if code == 0:
        config: Any = config_to_dict(load_config(file, sets))
        for key, most in MOST_WORK.items():
            value = reduce(getitem, key.split("."), config)
            sets += [f"{key}={most}"] if value > most else []
        code, text = _main("--config", str(file), "--run-name", "t", *_sets(sets))
    if code == 0:
        trained = (folder / "runs" / "t" / "checkpoints" / "last.pt").exists()
        return ("trained" if trained else "failed"), text
    lines = [line for line in text.splitlines() if not line.startswith("warning: ")]
    names = {name.rpartition(".")[2] for name in (*KEYS, *SECTIONS) if name}
    clear = len(lines) == 1 and lines[0].startswith("error: ") and any(n in text for n in names)
    clean = not (folder / "runs").exists()
    return ("refused" if code == 2 and clear and clean else "failed"), f"exit code {code}: {text}"


def _sets(sets: Sequence[str]) -> list[str]:
    return [part for text in sets for part in ("--set", text)]


def _main(*arguments: str) -> tuple[int, str]:
    """Run main; return its exit code and its output on standard error."""
    errors = io.StringIO()
    with (
        mock.patch.object(memory, "device_memory", return_value=(MOST_MEMORY, MOST_MEMORY)),
        mock.patch.object(device, "automatic_device", return_value=torch.device("cpu")),
        mock.patch.object(Outputs, "draw"),  # takes ten times as long as a step
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
    ):
        warnings.simplefilter("error", RuntimeWarning)  # numpy's overflows and divisions by zero
        try:
            return train(list(arguments)), errors.getvalue()
        except SystemExit as end:
            return int(end.code or 0), errors.getvalue()
        except Exception:
            return -1, traceback.format_exc()
        finally:
            torch.use_deterministic_algorithms(False)


@given(st.lists(st.tuples(NAMES, KINDS, ODD, FACTORS), min_size=1, max_size=3))
@settings(max_examples=300 * TIMES, suppress_health_check=list(HealthCheck))
def test_a_mutated_file_trains_a_step_or_is_one_clear_line(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, Any, float]]
) -> None:
    tree = config_to_dict(load_config("params_test", ["compute.device=cpu"]))
    for one in changes:
        mutate(tree, *one)
    try:
        how, text = outcome(tree, tmp_path_factory.mktemp("mutated"))
    except ValueError:  # more digits than Python writes
        return
    assert how in ("trained", "refused"), text


def test_a_crash_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = config_to_dict(load_config("params_test", ["compute.device=cpu"]))
    assert outcome(tree, tmp_path)[0] == "trained"
    monkeypatch.setattr("tests.soak.test_mutate_params.train", lambda _: 1 // 0)
    how, text = outcome(tree, tmp_path)
    assert how == "failed"
    assert "ZeroDivisionError" in text
