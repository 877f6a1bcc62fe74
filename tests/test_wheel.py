"""What a user gets from the wheel: the package, its params files, its commands."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKED = ("marl_framework", "params", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
BUILD = """
import os, shutil
from setuptools import build_meta
archive = build_meta.build_sdist("../dist")
shutil.unpack_archive(f"../dist/{archive}", "..")  # Python 3.11.2 has no filters
os.chdir(f"../{archive.removesuffix('.tar.gz')}")
build_meta.build_wheel("../dist")
"""
# All commands in one process: each start takes seconds.
COMMANDS = """
import json, sys
from importlib.metadata import distribution
import marl_framework

def run(command, *arguments):
    sys.argv = [command.name, *arguments]
    try:
        return command.load()()
    except SystemExit as end:
        return end.code

commands = {command.name: command for command in distribution("marl_framework").entry_points}
codes = {name: run(command, "--help") for name, command in commands.items()}
codes["no file"] = run(commands["marl-train"], "--config=none.yaml")
print(json.dumps([marl_framework.__file__, codes]))
"""
SMALL_FLIGHT = (
    *("--dry-run", "--checkpoint=pretrained:student", "--seed=101", "--run-name=dry"),
    *("--set=experiment.missions.n_agents=2", "--set=experiment.constraints.budget=3"),
    "--set=compute.compile=false",
)


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that does not see the checkout and succeeds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


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
    run(*PIP, f"--python={venv}/bin/python", "install", "--no-deps", "--no-index", wheel, cwd=base)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv


@pytest.fixture
def fly_venv(base: Path, wheel: Path) -> Iterator[Path]:
    """A new environment with the wheel and its extra `fly`, in the tested versions."""
    venv = base / "fly"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=base)
    # Compiling every file of the packages would take longer than the flight.
    options = ("--no-compile", "-c", ROOT / "constraints.txt")
    run(*PIP, f"--python={venv}/bin/python", "install", *options, f"{wheel}[fly]", cwd=base)
    yield venv
    shutil.rmtree(venv)  # more than a gigabyte, which pytest would keep for three sessions


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    releases = re.findall(
        r"^## \[(\d.*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert project["version"] == citation["version"] == releases[0]


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    inside = {
        name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("marl_framework/")
    }
    package = [path for path in (ROOT / "marl_framework").rglob("*") if path.is_file()]
    expected = {str(path.relative_to(ROOT)) for path in package if "__pycache__" not in path.parts}
    expected |= {f"marl_framework/params/{path.name}" for path in (ROOT / "params").iterdir()}
    assert inside == expected


@pytest.mark.soak
def test_an_installed_wheel_trains_from_any_folder(venv: Path, tmp_path: Path) -> None:
    train = (venv / "bin" / "marl-train", "--config=params_test.yaml", "--device=cpu")
    # A new copy of the loops would be compiled again, for longer than all the rest takes.
    done = run(
        *(*train, "--set=compute.compile=false", "--max-episodes=1", "--run-name=t"), cwd=tmp_path
    )
    assert "step 1/1" in done.stdout
    assert (tmp_path / "runs" / "t" / "summary.json").exists()
    assert sorted(os.listdir(tmp_path)) == ["runs"]


def test_the_commands_are_installed(venv: Path, tmp_path: Path) -> None:
    commands = {path.name for path in (venv / "bin").glob("marl-*")}
    names = ["train", "predict", "distill", "evaluate", "fly", "calibrate", "export", "doctor"]
    names += ["history", "data"]
    assert commands == {f"marl-{name}" for name in names}
    done = run(venv / "bin" / "python", "-c", COMMANDS, cwd=tmp_path)
    *helps, last = done.stdout.splitlines()
    assert sum(line.startswith("usage: ") for line in helps) == len(commands)
    package, codes = json.loads(last)
    assert Path(package).is_relative_to(venv)
    assert codes == {**dict.fromkeys(commands, 0), "no file": 2}
    names = ", ".join(sorted(path.name for path in (ROOT / "params").iterdir()))
    assert done.stderr == f"error: none.yaml: no such file; params/ contains {names}\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.soak
def test_the_extra_fly_installs_what_flights_need(fly_venv: Path, tmp_path: Path) -> None:
    python = fly_venv / "bin" / "python"
    fly = (python, "-m", "marl_framework.fly")
    done = run(*fly, *SMALL_FLIGHT, cwd=tmp_path)
    assert "equal: yes" in done.stdout
    assert "warning" not in done.stderr
    folder = tmp_path / "runs" / "dry"
    assert {"flight.mcap", "summary.json", "config.yaml", "team"} <= set(os.listdir(folder))
    run(*fly, f"--replay={folder}/flight.mcap", cwd=tmp_path)
    run(python, "-c", "import mavsdk.plugins, zenoh", cwd=tmp_path)  # for vehicles and radios
