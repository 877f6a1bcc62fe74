"""Help and bad input load no heavy library, and Ctrl-C while one loads is one line."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marl_framework.command_line import as_program, loaded

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "main",
    "evaluate",
    "export",
    "doctor",
    "history",
    "data",
    "predict",
    "distill",
    "flying.options",
)
HEAVY = ("torch", "numba", "matplotlib", "numpy", "kornia", "cv2", "tensorboard", "rich")
FLY = ("--out", "out", "--policies")
BAD_INPUT = {
    "main": [
        ("--config", "missing.yaml", "--check"),
        ("--config", "params_test.yaml", "--set", "learning.gamma=2"),
        ("--config", "params_test.yaml", "--run-name", "a b"),
        ("--resume",),
        ("--set", "experiment.missions.mission_mode=deployment", "--checkpoint", "missing.pt"),
        ("--no-such-option",),
    ],
    "evaluate": [
        ("--config", "missing.yaml", *FLY, "random"),
        ("--checkpoint", "missing.pt", *FLY, "learned"),
        ("--config", "params_test.yaml", *FLY, "nobody"),
        ("--config", "params_test.yaml", *FLY, "random", "--terrain", "data:lost"),
    ],
    "export": [("--checkpoint", "missing.pt", "--format", "torch", "--out", "team.pt2")],
    "doctor": [("--config", "missing.yaml")],
    "history": [("show", "missing")],
    "data": [(), ("lost",)],
    "predict": [("--config", "missing.yaml"), ("--resume",)],
    "distill": [
        ("--config", "missing.yaml"),
        ("--teacher", "a=search", "--tasks", "missing.yaml"),
        ("--teacher", "a"),
    ],
    "flying.options": [(), ("--dry-run",), ("--dry-run", "--checkpoint", "missing.pt")],
}
NEEDS_TORCH = {
    "main": ("--config", "params_test.yaml", "--check"),
    "evaluate": ("--config", "params_test.yaml", *FLY, "random"),
    "export": ("--checkpoint", __file__, "--format", "torch", "--out", "team.pt2"),
    "doctor": ("--config", "params_test.yaml"),
    "predict": ("--config", "params_test.yaml", "--check"),
    "distill": ("--config", "params_test.yaml", "--teacher", "a=random", "--check"),
    "flying.options": ("--dry-run", "--policy", "random", "--config", "params_test.yaml"),
}

# Runs command lines one after the other in a fresh process, and prints what became of each.
PROGRAM = """
import contextlib, importlib, io, json, os, signal, sys
from importlib import machinery
from importlib.abc import MetaPathFinder

heavy, cases, interrupted = json.loads(sys.argv[1])

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            with contextlib.suppress(KeyboardInterrupt):  # as some libraries do by mistake
                signal.raise_signal(signal.SIGINT)
            return machinery.ModuleSpec(name, None)

def run(name, arguments):
    sys.argv = [name, *arguments]
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = importlib.import_module(f"marl_framework.{name}").command()
        except SystemExit as end:
            code = end.code
    loaded = sorted(set(heavy) & set(sys.modules))
    return {"code": code or 0, "said": out.getvalue() + errors.getvalue(), "loaded": loaded}

def run_in_a_fork(name, arguments):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.argv = [name, *arguments]
        os._exit(importlib.import_module(f"marl_framework.{name}").command())
    os.close(writer)
    with open(reader) as file:
        said = file.read()
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "said": said}

found = [run(*case) for case in cases]
sys.meta_path.insert(0, CtrlC())
signal.signal(signal.SIGINT, signal.default_int_handler)
found += [run_in_a_fork(*case) for case in interrupted]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> list[tuple[tuple[str, list[str]], dict[str, Any]]]:
    """What became of each command line."""
    cases = [(name, ["--help"]) for name in COMMANDS]
    cases += [(name, list(given)) for name, all_given in BAD_INPUT.items() for given in all_given]
    interrupted = [(name, list(given)) for name, given in NEEDS_TORCH.items()]
    text = json.dumps((HEAVY, cases, interrupted))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, text], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return list(zip([*cases, *interrupted], json.loads(done.stdout), strict=True))


def test_help_and_bad_input_load_no_heavy_library(found: list) -> None:
    for (name, given), ended in found[: -len(NEEDS_TORCH)]:
        assert ended["loaded"] == [], (name, given)
        code = 0 if given == ["--help"] else 2
        assert ended["code"] == code, (name, given, ended["said"])


def test_bad_input_is_one_line(found: list) -> None:
    for (name, given), ended in found[len(COMMANDS) : -len(NEEDS_TORCH)]:
        assert ended["said"].startswith("error: "), (name, given)
        assert ended["said"].count("\n") == 1, (name, given)


def test_ctrl_c_while_libraries_load_is_one_line(found: list) -> None:
    for (name, given), ended in found[-len(NEEDS_TORCH) :]:
        assert (ended["code"], ended["said"]) == (130, "interrupted\n"), (name, given)


def test_garbage_is_looked_for_once_libraries_are_loaded() -> None:
    seen = []

    def main() -> int:
        seen.append(gc.isenabled())
        loaded()
        seen.append(gc.isenabled())
        return 0

    assert as_program(main) == 0
    assert as_program(lambda: 0) == 0  # ends before any library
    assert [*seen, gc.isenabled()] == [False, True, True]
