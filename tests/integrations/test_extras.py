"""The core needs no library of the wrappers; each wrapper names its missing extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {
    "torchrl": ["torchrl", "tensordict"],
    "coma_loss": ["torchrl", "tensordict"],
    "benchmarl": ["benchmarl", "torchrl"],
    "pettingzoo": ["pettingzoo", "gymnasium"],
    "gymnasium": ["gymnasium"],
    "sgptools": ["sgptools"],
}
CORE = """
import pkgutil, sys, importlib, marl_framework
blocked = {blocked!r}
sys.modules.update(dict.fromkeys(blocked))  # None: importing it fails as if it were absent
for module in pkgutil.walk_packages(marl_framework.__path__, "marl_framework."):
    if not module.name.startswith("marl_framework.integrations."):
        importlib.import_module(module.name)
for name in ("missions", "rendering", "paths"):
    importlib.import_module("marl_framework.integrations." + name)
print(sorted(name for name in blocked if sys.modules[name] is not None))
"""
WITHOUT = """
import importlib, sys
for wrapper, library in {pairs!r}:
    sys.modules[library] = None
    try:
        importlib.import_module("marl_framework.integrations." + wrapper)
    except ModuleNotFoundError as error:
        print(error)
    del sys.modules[library]
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_core_imports_none_of_them() -> None:
    blocked = sorted({name for names in LIBRARIES.values() for name in names} | {"vmas", "gym"})
    done = _run(CORE.format(blocked=blocked))
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_wrappers_without_their_library_name_the_extra() -> None:
    pairs = [(wrapper, name) for wrapper, names in LIBRARIES.items() for name in names]
    done = _run(WITHOUT.format(pairs=pairs))
    assert done.returncode == 0, done.stderr
    for (wrapper, library), message in zip(pairs, done.stdout.splitlines(), strict=True):
        extra = "torchrl" if wrapper == "coma_loss" else wrapper
        assert message.startswith(f"marl_framework.integrations.{extra} requires {library}")
        assert message.endswith(f"pip install 'marl_framework[{extra}]'")
