"""Loading and writing of params files: inheritance, overrides, published files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.field import with_area
from marl_framework.config.former import FORMER, translate
from marl_framework.config.messages import KEYS, SECTIONS, describe, join, show, unknown_key
from marl_framework.config.model import Config
from marl_framework.config.parts import ALGORITHM_DEFAULTS
from marl_framework.config.yaml_text import format_yaml, parse_yaml

# In a wheel, the folder is inside the package; in a checkout, next to the package.
_INSIDE, _BESIDE = (path / "params" for path in Path(__file__).resolve().parents[1:3])
PARAMS = _BESIDE if _BESIDE.is_dir() and not _INSIDE.is_dir() else _INSIDE
EXTENDS = "extends"
"""Key that names the params file on which a params file is based."""
_FROM_FILE = "@"  # begins an override that names a params file
_AREA, _SIDES = "environment.area", ("environment.x_dim", "environment.y_dim")
MISSION = (
    *("sensor", "mapping", *_SIDES, _AREA, "environment.field"),
    *(f"experiment.{name}" for name in ("constraints", "uav", "missions")),
)
"""Sections and keys that define a mission, independent of policy and reward."""
_LARGEST_FILE = 2**18  # maximum size of a params file [bytes]
_MOST_PROBLEMS = 8  # maximum number of problems in a message; the rest is counted
_KNOWN_KEYS = FORMER | set(KEYS)
_KNOWN_SECTIONS = SECTIONS | {
    key[:end] for key in FORMER for end, sign in enumerate(key) if sign == "."
}
AUTOMATIC = {key for defaults in ALGORITHM_DEFAULTS.values() for key in defaults}
"""Keys that may be null: their default depends on the algorithm."""


def resolve_config_path(name: str, folder: Path | None = None) -> Path:
    """Find a params file: a path relative to `folder` (default: here), or a name in `params/`.

    Raises ConfigError if the file does not exist; the message lists the files in `params/`.
    """
    folder = folder or Path()
    here = folder / name
    for candidate in (here, PARAMS / name, PARAMS / f"{name}.yaml") if name else ():
        if os.path.isfile(candidate):  # unlike Path.is_file, never raises
            return candidate
    if name and os.path.isdir(here):
        raise ConfigError(f"{name}: is a directory, not a params file")
    if name and os.path.exists(here):  # a pipe such as `<(sed … params.yaml)`
        return here
    known = ", ".join(sorted(path.name for path in PARAMS.glob("*.yaml")))
    shown = name if name.strip() and name.isprintable() else repr(name)
    raise ConfigError(f"{shown}: no such file; params/ contains {known or 'none'}")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Load a params file, apply overrides, and validate the result.

    Args:
        path: path or name. A file with `extends: other.yaml` holds only the differences from that
            file, which is in the same folder or in `params/`.
        overrides: texts `section.key=value`, value in YAML, or `@file` for all keys of a params
            file, without those of the file that it extends; later overrides win.

    Raises:
        ConfigError: the message names file or override, key, and valid values, in one line.
    """
    file = resolve_config_path(str(path))
    return _build(_read_layers(file), str(file), overrides)


def config_from_dict(
    d: Mapping[str, Any], source: str = "configuration", overrides: Sequence[str] = ()
) -> Config:
    """Build a configuration from plain data, such as a checkpoint's; `source` is for messages.

    Raises:
        ConfigError: see `load_config`.
    """
    return _build([(source, d)], source, overrides)


def with_changes(config: Config, changes: Mapping[str, Any], source: str) -> Config:
    """Return a configuration with `changes`, given as in a params file.

    Raises ConfigError as `load_config` does; `source` names the changes.
    """
    return _build([("configuration", without_defaults(config)), (source, changes)], source, ())


def config_to_dict(config: Config) -> dict[str, Any]:
    """Convert a configuration to plain data (numbers, texts, lists, mappings) with YAML keys."""
    return dict(_convert(config.model_dump(by_alias=True), tuple, list))


def without_defaults(config: Config) -> dict[str, Any]:
    """Return plain data in which keys are null if they have the default of the algorithm.

    With another algorithm, these keys get its defaults.
    """
    values, defaults = values_by_key(config), values_by_key(Config())
    defaults |= ALGORITHM_DEFAULTS.get(config.experiment.algorithm, {})
    values |= {key: None for key in AUTOMATIC if values[key] == defaults[key]}
    return dict(_convert(nest(values), tuple, list))


def values_by_key(config: Config) -> dict[str, Any]:
    """Return the values of all keys by dotted name, in file order."""
    return _flatten(config.model_dump(by_alias=True), [])


def differences(
    one: Config, other: Config, keys: Sequence[str] = KEYS
) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ, with both values."""
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


def _convert(value: Any, old: type[Iterable[Any]], new: type) -> Any:
    """Convert tuples to lists or lists to tuples, also inside mappings."""
    if isinstance(value, Mapping):
        return {key: _convert(item, old, new) for key, item in value.items()}
    return new(_convert(item, old, new) for item in value) if isinstance(value, old) else value


def read_text(file: Path) -> str:
    """Read the text of a params file, or raise a ConfigError."""
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


def _read_layers(file: Path, above: tuple[Path, ...] = ()) -> list[tuple[str, Any]]:
    """Return source and contents of a file and of all files it extends; the base comes first."""
    source = str(file)
    tree = parse_yaml(read_text(file), source)
    if tree is None:
        raise ConfigError(f"{source}: the file is empty; write sections such as networks:")
    if not isinstance(tree, dict) or EXTENDS not in tree:
        return [(source, tree)]
    name = tree.pop(EXTENDS)
    if not isinstance(name, str):
        raise ConfigError(f"{source}: {EXTENDS}: must be a file name, got {show(name)}")
    try:
        base = resolve_config_path(name, file.parent)
    except ConfigError as error:
        raise ConfigError(f"{source}: {EXTENDS}: {error}") from None
    chain = (*above, file)
    if any(os.path.samefile(base, other) for other in chain):
        raise ConfigError(f"{source}: {EXTENDS}: {name} extends this file, too; remove the cycle")
    return [*_read_layers(base, chain), (source, tree)]


def _build(layers: Sequence[tuple[str, Any]], source: str, overrides: Sequence[str]) -> Config:
    """Merge layers and overrides (the last value wins), and validate the result."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []
    problems: list[str] = []
    for name, origin, layer, errors in _read_values(layers, source, overrides):
        if translated := translate(layer, errors):
            notes.append(f"{name}: {'; '.join(translated)}")
        problems += [text + origin for text in errors]
        if layer.keys() & {*_SIDES} and _AREA not in layer:  # new sides replace earlier areas
            values.pop(_AREA, None)
        values |= layer
        origins |= dict.fromkeys(layer, origin)
    given = {
        key: value for key, value in values.items() if not (key in AUTOMATIC and value is None)
    }
    values = ALGORITHM_DEFAULTS.get(str(values.get("experiment.algorithm")), {}) | given

    def origin_of(place: str) -> str:
        for key, origin in origins.items():
            if place == key or place.startswith((f"{key}.", f"{key}[")):
                return origin
        section = f"{place}." if place else ""
        inside = [text for key, text in origins.items() if key.startswith(section)]
        return "".join([text for text in inside if text.startswith(" (override")][-3:])

    try:
        config = Config.model_validate(with_area(nest(values)))
    except ValidationError as error:
        problems += describe(error, origin_of)
    except ConfigError as error:  # of the field's file
        problems.append(f"{error}{origin_of('environment.field')}")
    if problems:
        more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if problems[_MOST_PROBLEMS:] else []
        raise ConfigError(f"{source}: {'; '.join(problems[:_MOST_PROBLEMS] + more)}")
    if notes:
        warnings.warn("; ".join(notes), ConfigWarning, stacklevel=3)
    return config


def _read_values(
    layers: Sequence[tuple[str, Any]], source: str, overrides: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, Any], list[str]]]:
    """Yield each layer's name, origin (for messages), values by dotted name, and problems."""
    yield from (_read_layer(layer, source) for layer in layers)
    for text in overrides:
        if text.startswith(_FROM_FILE):  # without the keys of files that it extends
            file = resolve_config_path(text.removeprefix(_FROM_FILE))
            yield _read_layer(_read_layers(file)[-1], source)
            continue
        name = f"override {text if len(text) <= 100 else text[:97] + '...'}"
        yield name, f" ({name})", _parse_override(text, name), []


def _read_layer(layer: tuple[str, Any], source: str) -> tuple[str, str, dict[str, Any], list[str]]:
    """Return a file's name, origin, values by dotted name, and problems."""
    name, tree = layer
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{name}: must hold sections such as networks:, got {show(tree)}")
    problems: list[str] = []
    origin = "" if name == source else f" (from {name})"
    return name, origin, _flatten(tree, problems), problems


def _flatten(tree: Mapping[Any, Any], problems: list[str], section: str = "") -> dict[str, Any]:
    """Return values by dotted name, lists as tuples; append unknown keys to `problems`."""
    values: dict[str, Any] = {}
    for key, item in tree.items():
        path = join(section, key)
        plain = isinstance(key, str) and "." not in key
        if plain and path in _KNOWN_SECTIONS:
            if isinstance(item, Mapping | None):
                values |= _flatten(item or {}, problems, path)
            else:
                problems.append(f"{path}: must be a section with keys below it, got {show(item)}")
        elif plain and path in _KNOWN_KEYS:
            values[path] = _convert(item, list, tuple)
        else:
            # Finding the nearest key is slow.
            problems.append(unknown_key(path) if len(problems) < 10 else path)
    return values


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values by dotted name to nested sections."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *sections, leaf = path.split(".")
        node = tree
        for name in sections:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def _parse_override(text: str, source: str) -> dict[str, Any]:
    """Parse an override; return the value by dotted name."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(
            f"{source}: must have the form section.key=value, such as learning.gamma=0.95"
        )
    if path in SECTIONS:
        example = next(key for key in KEYS if key.startswith(f"{path}."))
        raise ConfigError(f"{source}: {path} is a section; name one key of it, such as {example}")
    for key in KEYS:
        if path.startswith(f"{key}."):
            raise ConfigError(f"{source}: {key} is a value, not a section; write {key}=... instead")
    if path not in _KNOWN_KEYS:
        raise ConfigError(f"{source}: {unknown_key(path)}")
    return {path: _convert(parse_yaml(value, source), list, tuple)}
