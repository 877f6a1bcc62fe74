"""Params files in, `Config` out: loading, overrides, published files, dumping."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.former import FORMER_RANGES, OBSOLETE, PARTS, RENAMED, Ranges, translate
from marl_framework.config.messages import (
    KEYS,
    SECTIONS,
    describe,
    join,
    join_problems,
    show,
    unknown_key,
)
from marl_framework.config.model import Config
from marl_framework.config.yaml_text import format_yaml, parse_yaml

__all__ = [
    "ConfigError",
    "ConfigWarning",
    "config_from_dict",
    "config_to_dict",
    "dump_config",
    "load_config",
    "resolve_config_path",
]

_PACKAGE = Path(__file__).resolve().parents[1]
# An installed wheel carries the folder inside the package; in a checkout it lies beside it.
PARAMS = next(
    (folder for folder in (_PACKAGE / "params", _PACKAGE.parent / "params") if folder.is_dir()),
    _PACKAGE / "params",
)
EXTENDS = "extends"
"""Key of a params file that names the one it differs from."""
MISSION = (
    *("sensor", "mapping", "environment.x_dim", "environment.y_dim"),
    *(f"experiment.{name}" for name in ("constraints", "uav", "missions")),
)
"""Sections and keys that say what a mission is, whoever flies it and for whatever reward."""
_LARGEST_FILE = 2**18  # bytes; a params file has a few thousand


def resolve_config_path(name: str) -> Path:
    """Find a params file: an absolute path, one from here, or a name in `params/`.

    Raises:
        ConfigError: there is no such file; names the files of `params/`.
    """
    return _find(name, Path())


def _find(name: str, folder: Path) -> Path:
    """Find a params file in a folder, else in `params/`."""
    here = folder / name
    candidates = [here, PARAMS / name, PARAMS / f"{name}.yaml"]
    for candidate in candidates:
        if name and os.path.isfile(candidate):  # unlike Path.is_file: never raises
            return candidate
    if name and os.path.isdir(here):
        raise ConfigError(f"{name}: is a directory, not a params file")
    if name and os.path.exists(here):  # a pipe: `<(sed … params.yaml)`
        return here
    known = ", ".join(sorted(path.name for path in PARAMS.glob("*.yaml")))
    shown = name if name.strip() and name.isprintable() else repr(name)
    raise ConfigError(f"{shown}: no such file; params/ holds {known or 'none'}")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override and check a params file.

    Args:
        path: see `resolve_config_path`. A file that says `extends: other.yaml` holds only what
            differs from that one, which lies beside it or in `params/`.
        overrides: `section.key=value` each, value in YAML; a later one wins.

    Raises:
        ConfigError: one line that names the file or override, the key, and what is right.
    """
    file = resolve_config_path(str(path))
    return _build(_layers(file), str(file), overrides)


def config_from_dict(
    d: Mapping[str, Any], source: str = "configuration", overrides: Sequence[str] = ()
) -> Config:
    """Override and check plain data, such as that of a checkpoint; `source` names it in messages.

    Raises:
        ConfigError: as of `load_config`.
    """
    return _build([(source, d)], source, overrides)


def with_changes(config: Config, changes: Mapping[str, Any], source: str) -> Config:
    """Return a configuration with some keys changed, given as a params file has them.

    Raises:
        ConfigError: as of `load_config`; `source` names the changes.
    """
    return _build([("configuration", config_to_dict(config)), (source, changes)], source, ())


def config_to_dict(config: Config) -> dict[str, Any]:
    """Plain data of all keys under their YAML names: numbers, texts, lists, dictionaries."""
    plain: dict[str, Any] = _listed(config.model_dump(by_alias=True))
    return plain


def values_by_key(config: Config) -> dict[str, Any]:
    """Plain data of all keys by their dotted names, in the order of the files."""
    tree = config_to_dict(config)
    return {key: reduce(getitem, key.split("."), tree) for key in KEYS}


def differences(
    one: Config, other: Config, keys: Sequence[str] = KEYS
) -> dict[str, tuple[Any, Any]]:
    """Return those of some keys whose values differ, with both values."""
    a, b = values_by_key(one), values_by_key(other)
    return {key: (a[key], b[key]) for key in keys if a[key] != b[key]}


def dump_config(config: Config, path: str | Path) -> None:
    """Write a complete params file that loads to an equal configuration.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(path).write_text(format_yaml(config_to_dict(config)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def read_text(file: Path) -> str:
    """Read a params file.

    Raises:
        ConfigError: it cannot be read, is too large, or is no UTF-8 text.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"{file}: larger than 256 KiB; this is not a params file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}: line {line}: not UTF-8 text") from None


def _layers(file: Path, below: tuple[Path, ...] = ()) -> list[tuple[str, Any]]:
    """Return what a file and those it extends hold, each with its source; the lowest first."""
    source = str(file)
    tree = parse_yaml(read_text(file), source)
    if tree is None:
        raise ConfigError(f"{source}: the file is empty; it must hold sections such as networks:")
    if not isinstance(tree, dict) or EXTENDS not in tree:
        return [(source, tree)]
    name = tree.pop(EXTENDS)
    if not isinstance(name, str):
        raise ConfigError(f"{source}: {EXTENDS}: must be the name of a file, got {show(name)}")
    try:
        base = _find(name, file.parent)
    except ConfigError as error:
        raise ConfigError(f"{source}: {EXTENDS}: {error}") from None
    chain = (*below, file)
    if any(os.path.samefile(base, other) for other in chain):
        raise ConfigError(f"{source}: {EXTENDS}: {name} extends this file itself")
    return [*_layers(base, chain), (source, tree)]


def _build(layers: Sequence[tuple[str, Any]], source: str, overrides: Sequence[str]) -> Config:
    """Put layers and overrides on top of each other and check the whole."""
    notes: list[str] = []
    problems: list[str] = []
    merged: dict[str, Any] = {}
    ranges = Ranges()
    origins: list[tuple[str, dict[str, Any]]] = []
    for name, layer in layers:
        tree, found = _clean(layer, name, notes, ranges)
        problems += [text if name == source else f"{text} (from {name})" for text in found]
        origins.append((name, tree))
        _merge(merged, tree)
    texts = []
    for text in overrides:
        said = f"override {text if len(text) <= 100 else text[:97] + '...'}"
        path, tree = _override(text, said)
        texts.append(((RENAMED | FORMER_RANGES).get(path, path), text))
        tree, found = _clean(tree, said, notes, ranges)
        problems += [f"{text} ({said})" for text in found]
        _merge(merged, tree)

    def blame(path: str) -> str:
        guilty = [text for key, text in texts if not path or f"{key}.".startswith(f"{path}.")]
        if guilty:
            return f" (override {', '.join(guilty[-3:])})"
        below = [name for name, tree in origins if path and _holds(tree, path)]
        return f" (from {below[-1]})" if below and below[-1] != source else ""

    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        problems += describe(error, blame)
    if problems:
        raise ConfigError(f"{source}: {join_problems(problems)}")
    if notes:
        warnings.warn("; ".join(notes), ConfigWarning, stacklevel=3)
    return config


def _clean(
    layer: Any, source: str, notes: list[str], ranges: Ranges
) -> tuple[dict[str, Any], list[str]]:
    """Return a layer of present keys alone, and its problems; what was translated is noted.

    Raises:
        ConfigError: it is no mapping.
    """
    if not isinstance(layer, Mapping):
        raise ConfigError(f"{source}: must hold sections such as networks:, got {show(layer)}")
    tree = _copy(layer, "")
    problems: list[str] = []
    found = ranges.translate(tree, problems) + translate(tree, problems)
    known: dict[str, Any] = _known_part(tree, "", problems)
    if found:
        notes.append(f"{source}: {'; '.join(found)}")
    return known, problems


def _copy(value: Any, path: str) -> Any:
    """Own dictionaries for all sections; a section without keys (null) is an empty one."""
    if value is None and path in SECTIONS:
        return {}
    if not isinstance(value, Mapping):
        return value
    return {key: _copy(item, join(path, key)) for key, item in value.items()}


def _merge(below: dict[str, Any], above: Mapping[str, Any], path: str = "") -> None:
    """Put the values of `above` into `below`, section by section, in place."""
    for key, value in above.items():
        inner, old = join(path, key), below.get(key)
        if inner in SECTIONS and isinstance(value, Mapping) and isinstance(old, dict):
            _merge(old, value, inner)
        else:
            below[key] = _copy(value, inner)


def _holds(tree: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True


def _override(text: str, source: str) -> tuple[str, dict[str, Any]]:
    """Return the dotted name that an override sets, and a tree that holds it alone."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(f"{source}: must read section.key=value, such as learning.gamma=0.95")
    if path in SECTIONS:
        example = next(key for key in KEYS if key.startswith(f"{path}."))
        raise ConfigError(f"{source}: {path} is a section; name one key of it, such as {example}")
    _refuse_unknown(path, source)
    tree: Any = parse_yaml(value, source)
    for name in reversed(path.split(".")):
        tree = {name: tree}
    return path, tree


def _refuse_unknown(path: str, source: str) -> None:
    parts = path.split(".")
    for length in range(1, len(parts)):
        parent = ".".join(parts[:length])
        if parent in KEYS:
            raise ConfigError(
                f"{source}: {parent} is a value, not a section; write {parent}=... instead"
            )
    if path not in (*KEYS, *OBSOLETE, *RENAMED, *FORMER_RANGES, *PARTS):
        raise ConfigError(f"{source}: {unknown_key(path)}")


def _tupled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tupled(item) for key, item in value.items()}
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


def _known_part(value: Any, path: str, problems: list[str]) -> Any:
    """The tree without unknown keys, which become problems; lists become tuples."""
    if path not in SECTIONS or not isinstance(value, Mapping):
        return _tupled(value)
    known = {}
    for key, item in value.items():
        inner = join(path, key)
        if isinstance(key, str) and "." not in key and (inner in SECTIONS or inner in KEYS):
            known[key] = _known_part(item, inner, problems)
        else:
            # Past a handful they are only counted: the nearest key takes a while to find.
            problems.append(unknown_key(inner) if len(problems) < 10 else inner)
    return known
