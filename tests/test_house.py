"""Rules of the house that a reader relies on: small files, floors, no host round trips."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "marl_framework"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 400

# Lowest first. A module may import its own floor and the floors below it.
FLOORS = (
    {"configuration", "config", "config_io", "command_line", "device", "kernels"},
    {"mission"},
    {"observations"},
    {"coma"},
    {"coma_wrapper"},
    {"training", "planners", "evaluation"},
    {"main", "evaluate", "export", "doctor", "history", "integrations"},
)
ON_DEVICE = ("mission", "observations", "coma")
HOST_READS = {"item", "cpu", "tolist", "numpy"}
ON_DEVICE_TOO = ("integrations/missions.py", "integrations/torchrl.py", "integrations/coma_loss.py")
READS_FILES = "mission/raster.py"  # rasters are read on the host, once, before any mission


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in SOURCES}


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
    return next(level for level, names in enumerate(FLOORS) if parts[1] in names)


def _device_files() -> list[Path]:
    folders = [PACKAGE / name for name in ON_DEVICE]
    inside = [path for path in SOURCES if path.parents[0] in folders]
    inside += [PACKAGE / name for name in ON_DEVICE_TOO]
    return [path for path in inside if path != PACKAGE / READS_FILES]


def _label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_python_file_is_longer_than_400_lines() -> None:
    files = [
        path for top in (PACKAGE, ROOT / "benchmarks", ROOT / "tests") for path in top.rglob("*.py")
    ]
    lengths = {_label(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert lengths
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_every_module_has_a_floor() -> None:
    top = {name.split(".")[1] for name in MODULES if "." in name}
    assert top - set().union(*FLOORS) == set()


@pytest.mark.parametrize("path", SOURCES, ids=_label)
def test_lower_floors_never_import_higher_ones(path: Path) -> None:
    ours = {name for name in _imports(path) if name in MODULES}
    assert {name for name in ours if _floor(name) > _floor(_name(path))} == set()


def test_imports_make_no_circle() -> None:
    graph = {
        name: {other for other in _imports(path) if other in MODULES and other != name}
        for name, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("path", _device_files(), ids=_label)
def test_device_code_reads_no_tensor_back_to_the_host(path: Path) -> None:
    reads = [
        f"line {node.lineno}: .{node.func.attr}()"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in HOST_READS
    ]
    assert reads == []


@pytest.mark.parametrize("path", _device_files(), ids=_label)
def test_device_code_needs_neither_numpy_nor_opencv(path: Path) -> None:
    assert {name.split(".")[0] for name in _imports(path)} & {"numpy", "cv2"} == set()


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import sys, marl_framework; print(sorted({'torch', 'numpy', 'cv2'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
