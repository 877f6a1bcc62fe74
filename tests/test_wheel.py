"""What a user gets from the wheel: the package, its params files, its commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKED = ("marl_framework", "params", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
LOCAL = ("--no-deps", "--no-index")
BUILD = "from setuptools import build_meta; print(build_meta.build_sdist('../dist'))"


def start(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that does not see the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )


def run(*command: object, cwd: Path) -> str:
    """Run such a command, which succeeds; return what it printed."""
    done = start(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of what is packed: a build in the checkout would leave files there."""
    base = tmp_path_factory.mktemp("wheel")
    for name in PACKED:
        source, target = ROOT / name, base / "source" / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return base


@pytest.fixture(scope="module")
def wheel(base: Path) -> Path:
    """The wheel, built from the source distribution, so that this one is complete too."""
    run(sys.executable, "-c", BUILD, cwd=base / "source")
    (archive,) = (base / "dist").iterdir()
    run(*PIP, "wheel", *LOCAL, "--no-build-isolation", "-w", base / "dist", archive, cwd=base)
    (built,) = (base / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def venv(base: Path, wheel: Path) -> Path:
    """A new environment with the wheel alone; dependencies are those of the tests'.

    A folder that a .pth file names is searched like any other, but .pth files in it, such as an
    editable installation's, have no effect.
    """
    venv = base / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=base)
    run(*PIP, f"--python={venv}/bin/python", "install", *LOCAL, wheel, cwd=base)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    inside = {
        name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("marl_framework/")
    }
    package = [path for path in (ROOT / "marl_framework").rglob("*") if path.is_file()]
    expected = {str(path.relative_to(ROOT)) for path in package if "__pycache__" not in path.parts}
    expected |= {f"marl_framework/params/{path.name}" for path in (ROOT / "params").iterdir()}
    assert inside == expected


def test_an_installed_wheel_trains_from_any_folder(venv: Path, tmp_path: Path) -> None:
    python = venv / "bin" / "python"
    found = run(python, "-c", "import marl_framework; print(marl_framework.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(venv)
    train = (python, "-m", "marl_framework.main", "--config", "params_test.yaml", "--device=cpu")
    said = run(*train, "--run-name", "t", cwd=tmp_path)
    assert "step 4/4" in said
    assert (tmp_path / "runs" / "t" / "summary.json").exists()
    assert sorted(os.listdir(tmp_path)) == ["runs"]


def test_the_commands_are_installed(venv: Path, tmp_path: Path) -> None:
    commands = {path.name for path in (venv / "bin").glob("marl-*")}
    assert commands == {f"marl-{n}" for n in ("train", "evaluate", "export", "doctor", "history")}
    train = (venv / "bin" / "marl-train", "--device=cpu", "--check")
    assert run(*train, "--config=params_test.yaml", cwd=tmp_path).endswith("valid\n")
    for name in commands - {"marl-train"}:
        assert run(venv / "bin" / name, "--help", cwd=tmp_path).startswith("usage: ")
    missing = start(*train, "--config=none.yaml", cwd=tmp_path)
    names = ", ".join(sorted(path.name for path in (ROOT / "params").iterdir()))
    assert missing.stderr == f"error: none.yaml: no such file; params/ holds {names}\n"
    assert missing.returncode == 2
    assert os.listdir(tmp_path) == []
