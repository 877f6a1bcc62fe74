"""Load an unchanged clone of the published code, dmar-bonn/ipp-marl, into this process.

Its package has the same name as ours, and its modules import each other both as `marl_framework.x`
and as `x`. So they are loaded below the name `ALIAS`, with their imports of each other rewritten in
memory.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import yaml

from marl_framework.config.errors import ConfigError

ALIAS = "published_ipp_marl"
PACKAGE = "marl_framework"
ADDRESS = "https://github.com/dmar-bonn/ipp-marl"
NEEDED = {
    "IG_baseline": "IG_baseline",
    "random_baseline": "RandomBaseline",
    "agent.state_space": "AgentStateSpace",
    "mapping.simulations": "Simulation",
    "mapping.ground_truths": "gaussian_random_field",
    "sensors.models.sensor_models": "AltitudeSensorModel",
    "utils.utils": "get_wrmse",
}
"""Modules of the clone that are used, with one name of each."""

_ONLY_DRAWS = ("seaborn",)  # used only by drawing functions, which are not called
_DISTRIBUTIONS = {"cv2": "opencv-python-headless", "sklearn": "scikit-learn"}


class PublishedCode:
    """The clone's modules and params.

    Args:
        src: the clone, or the folder of its package.

    Attributes:
        folder: folder of its package.
        params_file: its params.yaml.
        params: content of that file.
        commit: commit of the clone, None if unknown to git.

    Raises:
        ConfigError: the folder is not a clone, or a package that it needs is missing.
    """

    def __init__(self, src: Path) -> None:
        self.folder = _package_folder(src)
        self.params_file = self.folder / "params.yaml"
        self.commit = _commit(self.folder)
        self.params: dict[str, Any] = _read_params(self.params_file)
        _install(self.folder)
        anomalies_detected = torch.is_anomaly_enabled()
        try:
            for module, name in NEEDED.items():
                getattr(self.module(module), name)
        except (ImportError, SyntaxError, AttributeError) as error:
            raise ConfigError(f"--src {src}: {_reason(error)}") from error
        finally:  # its critic turns this on for the whole process
            torch.autograd.set_detect_anomaly(anomalies_detected)

    def module(self, name: str) -> ModuleType:
        """Return a module of the clone, such as `mapping.mappings`."""
        return importlib.import_module(f"{ALIAS}.{name}")

    def get(self, module: str) -> Any:
        """Return the object that `NEEDED` names in a module."""
        return getattr(self.module(module), NEEDED[module])


def _package_folder(src: Path) -> Path:
    for folder in (src / PACKAGE, src):
        if all((folder / name).is_file() for name in ("IG_baseline.py", "params.yaml")):
            return folder
    raise ConfigError(
        f"--src {src}: lacks {PACKAGE}/IG_baseline.py or {PACKAGE}/params.yaml; "
        f"give a clone of {ADDRESS}"
    )


def _read_params(path: Path) -> dict[str, Any]:
    try:
        params = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--src: {path}: cannot be read as YAML") from error
    if not isinstance(params, dict):
        raise ConfigError(f"--src: {path}: must hold sections of keys")
    return params


def _commit(folder: Path) -> str | None:
    try:
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _reason(error: Exception) -> str:
    """Return in one line why the clone cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.removeprefix(f"{ALIAS}.")
        if missing != error.name:
            return f"module {missing} is missing; give a clone of {ADDRESS}"
        package = missing.partition(".")[0]
        wanted = _DISTRIBUTIONS.get(package, package)
        return f"package {package} is missing; install it with: pip install {wanted}"
    return f"cannot be imported: {' '.join(str(error).split())}; give a clone of {ADDRESS}"


# The import mechanism ---------------------------------------------------------------------


def _install(folder: Path) -> None:
    """Make `ALIAS` a package in a folder; forget the modules of an earlier clone."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [n for n in sys.modules if n == ALIAS or n.startswith(f"{ALIAS}.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(folder))


class _Finder(MetaPathFinder):
    """Finds `ALIAS` and its modules in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        packages = (path.parent.name for path in folder.glob("*/__init__.py"))
        self._own = {PACKAGE, *packages, *(path.stem for path in folder.glob("*.py"))}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, *below = fullname.split(".")
        if first != ALIAS:
            return None
        place = self._folder.joinpath(*below)
        package = (place / "__init__.py").is_file()
        file = place / "__init__.py" if package else place.with_suffix(".py")
        if not file.is_file():
            return None
        return spec_from_file_location(
            fullname,
            file,
            loader=_Loader(fullname, file, self._own),
            submodule_search_locations=[str(place)] if package else None,
        )


class _Loader(SourceFileLoader):
    """Compiles a file with rewritten imports, without `__pycache__`."""

    def __init__(self, fullname: str, file: Path, own: set[str]) -> None:
        super().__init__(fullname, str(file))
        self._own = own

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        rewritten = ast.fix_missing_locations(_Imports(self._own).visit(tree))
        return compile(rewritten, self.path, "exec", dont_inherit=True)


class _Imports(ast.NodeTransformer):
    """Rewrites imports of the clone's modules, with and without `PACKAGE.`, to `ALIAS.`."""

    def __init__(self, own: set[str]) -> None:
        self._own = own

    def _aliased(self, name: str) -> str:
        first, *rest = name.split(".")
        return ".".join([ALIAS, *([] if first == PACKAGE else [first]), *rest])

    def _is_own(self, name: str) -> bool:
        return name.partition(".")[0] in self._own

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.level == 0 and node.module and self._is_own(node.module):
            node.module = self._aliased(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        found: list[ast.alias] = []
        for name in node.names:
            if name.name in _ONLY_DRAWS:
                continue
            if not self._is_own(name.name):
                found.append(name)
                continue
            first = name.name.partition(".")[0]
            found.append(ast.alias(self._aliased(name.name), name.asname or first))
            if not name.asname:  # `import a.b` loads a.b and binds a
                found.append(ast.alias(self._aliased(first), first))
        return [ast.copy_location(ast.Import(found) if found else ast.Pass(), node)]
