"""What a reader may rely on: small files, imports downwards, no reads back to the host."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import marl_framework

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "marl_framework"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 500

# Lowest first: each folder has a floor of its own and imports the floors below it alone.
LAYERS = """
config command_line device stage_timer kernels runs mission networks observations algorithms
coma_wrapper planners exporting evaluation deployment training flying prediction distillation
integrations
"""
FLOORS = tuple(LAYERS.split())
COMMANDS = {
    *("main", "predict", "distill", "evaluate", "fly", "calibrate", "export", "doctor", "history"),
    "data",
}
"""On top: they import any folder, and none of them is imported."""
KNOW_NO_MISSION = ("networks", "algorithms")
ON_DEVICE = ("mission", "mission/terrains", "observations", "networks", "algorithms")
HOST_READS = {"item", "cpu", "tolist", "numpy"}
ON_DEVICE_TOO = ("integrations/missions.py", "integrations/torchrl.py", "integrations/coma_loss.py")
# Rasters, zones and fields are read on the host, once, before any mission.
READS_FILES = (
    "mission/field_file.py",
    "mission/no_fly_zones.py",
    "mission/terrains/raster_file.py",
    "mission/terrains/geotiff.py",
)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in SOURCES}


@cache
def _imports(path: Path) -> set[str]:
    """Dotted names that a file imports, relative imports resolved."""
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def _floor(module: str) -> int:
    """Floor of a module of the package; the package itself lies below all."""
    parts = module.split(".")
    if len(parts) == 1:
        return -1
    return len(FLOORS) if parts[1] in COMMANDS else FLOORS.index(parts[1])


def _device_files() -> list[Path]:
    folders = [PACKAGE / name for name in ON_DEVICE]
    inside = [path for path in SOURCES if path.parents[0] in folders]
    inside += [PACKAGE / name for name in ON_DEVICE_TOO]
    return [path for path in inside if path not in [PACKAGE / name for name in READS_FILES]]


def _label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_python_file_is_longer_than_500_lines() -> None:
    files = [
        path for top in (PACKAGE, ROOT / "benchmarks", ROOT / "tests") for path in top.rglob("*.py")
    ]
    lengths = {_label(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert lengths
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_every_module_has_a_floor() -> None:
    top = {name.split(".")[1] for name in MODULES if "." in name}
    assert top == {*FLOORS, *COMMANDS}


def _importing(paths: Iterable[Path], wrong: Callable[[Path, str], bool]) -> dict[str, set[str]]:
    """Names that files must not import, by file."""
    found = {_label(path): {each for each in _imports(path) if wrong(path, each)} for path in paths}
    return {label: names for label, names in found.items() if names}


def test_lower_floors_never_import_higher_ones() -> None:
    def above(path: Path, name: str) -> bool:
        return name in MODULES and _floor(name) > _floor(_name(path))

    assert _importing(SOURCES, above) == {}


def test_networks_and_algorithms_know_no_mission() -> None:
    unknown = tuple(f"marl_framework.{name}" for name in ("mission", "observations"))
    paths = [path for path in SOURCES if path.parent.name in KNOW_NO_MISSION]
    assert _importing(paths, lambda _, name: name.startswith(unknown)) == {}


def test_no_command_line_is_imported() -> None:
    wanted = {f"marl_framework.{name}" for name in COMMANDS}
    assert _importing(SOURCES, lambda _, name: name in wanted) == {}


def test_imports_make_no_circle() -> None:
    graph = {
        name: {other for other in _imports(path) if other in MODULES and other != name}
        for name, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_device_code_reads_no_tensor_back_to_the_host() -> None:
    reads = [
        f"{_label(path)}, line {node.lineno}: .{node.func.attr}()"
        for path in _device_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in HOST_READS
    ]
    assert reads == []


def test_device_code_needs_neither_numpy_nor_opencv() -> None:
    unwanted = {"numpy", "cv2"}
    assert _importing(_device_files(), lambda _, name: name.split(".")[0] in unwanted) == {}


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import sys, marl_framework; print(sorted({'torch', 'numpy', 'cv2'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", marl_framework.__all__)
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    found = getattr(marl_framework, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found)
        assert found.__module__.startswith("marl_framework.")


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="Trianer"):
        _ = marl_framework.Trianer  # type: ignore[attr-defined]
