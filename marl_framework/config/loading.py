"""Params files in, `Config` out: loading, overrides, published files, dumping."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.former import FORMER, translate
from marl_framework.config.messages import KEYS, SECTIONS, describe, join, show, unknown_key
from marl_framework.config.model import Config
from marl_framework.config.parts import ALGORITHM_DEFAULTS
from marl_framework.config.yaml_text import format_yaml, parse_yaml

# A wheel has the folder inside the package, a checkout next to it.
_INSIDE, _BESIDE = (path / "params" for path in Path(__file__).resolve().parents[1:3])
PARAMS = _BESIDE if _BESIDE.is_dir() and not _INSIDE.is_dir() else _INSIDE
EXTENDS = "extends"
"""Key of a params file that names the one it differs from."""
MISSION = (
    *("sensor", "mapping", "environment.x_dim", "environment.y_dim"),
    *(f"experiment.{name}" for name in ("constraints", "uav", "missions")),
)
"""Sections and keys that define a mission, whoever flies it and for whatever reward."""
_LARGEST_FILE = 2**18  # bytes; a params file has a few thousand
_MOST_PROBLEMS = 8  # in a message; more are only counted
_KNOWN_KEYS = FORMER | set(KEYS)
_KNOWN_SECTIONS = SECTIONS | {
    key[:end] for key in FORMER for end, sign in enumerate(key) if sign == "."
}
_AUTOMATIC = {key for defaults in ALGORITHM_DEFAULTS.values() for key in defaults}
"""Keys that may be null: their default depends on the algorithm."""


def resolve_config_path(name: str, folder: Path | None = None) -> Path:
    """Return the params file of a name: a path from `folder` or here, or a file of `params/`.

    Raises:
        ConfigError: there is no such file; names the files of `params/`.
    """
    folder = folder or Path()
    here = folder / name
    for candidate in (here, PARAMS / name, PARAMS / f"{name}.yaml") if name else ():
        if os.path.isfile(candidate):  # unlike Path.is_file: never raises
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
        path: path or name. A file with `extends: other.yaml` holds only what differs from that one,
            which lies next to it or in `params/`.
        overrides: `section.key=value` each, value in YAML; a later one wins.

    Raises:
        ConfigError: one line that names the file or override, the key, and the valid values.
    """
    file = resolve_config_path(str(path))
    return _build(_layers(file), str(file), overrides)


def config_from_dict(
    d: Mapping[str, Any], source: str = "configuration", overrides: Sequence[str] = ()
) -> Config:
    """Override and check plain data, such as that of a checkpoint; `source` names it in messages.

    Raises:
        ConfigError: see `load_config`.
    """
    return _build([(source, d)], source, overrides)


def with_changes(config: Config, changes: Mapping[str, Any], source: str) -> Config:
    """Return a configuration with some keys changed, given as in a params file.

    Raises:
        ConfigError: see `load_config`; `source` names the changes.
    """
    return _build([("configuration", config_to_dict(config)), (source, changes)], source, ())


def config_to_dict(config: Config) -> dict[str, Any]:
    """Return plain data of all keys under their YAML names: numbers, texts, lists, mappings."""
    return dict(_listed(config.model_dump(by_alias=True)))


def values_by_key(config: Config) -> dict[str, Any]:
    """Return the values of all keys by their dotted names, in the order of the files."""
    return _flatten(config.model_dump(by_alias=True), [])


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


def _tupled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tupled(item) for key, item in value.items()}
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


def read_text(file: Path) -> str:
    """Read a params file, or raise a ConfigError."""
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


def _layers(file: Path, above: tuple[Path, ...] = ()) -> list[tuple[str, Any]]:
    """Return the contents of a file and of those it extends, each with its source; lowest first."""
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
        base = resolve_config_path(name, file.parent)
    except ConfigError as error:
        raise ConfigError(f"{source}: {EXTENDS}: {error}") from None
    chain = (*above, file)
    if any(os.path.samefile(base, other) for other in chain):
        raise ConfigError(f"{source}: {EXTENDS}: {name} extends this file itself")
    return [*_layers(base, chain), (source, tree)]


def _build(layers: Sequence[tuple[str, Any]], source: str, overrides: Sequence[str]) -> Config:
    """Merge layers and overrides, of which the last wins, and check the result."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []
    problems: list[str] = []
    for name, origin, layer, found in _read(layers, source, overrides):
        if translated := translate(layer, found):
            notes.append(f"{name}: {'; '.join(translated)}")
        problems += [text + origin for text in found]
        values |= layer
        origins |= dict.fromkeys(layer, origin)
    for key in _AUTOMATIC:
        if values.get(key) is None:
            values.pop(key, None)
            defaults = ALGORITHM_DEFAULTS.get(str(values.get("experiment.algorithm")), {})
            values |= {key: defaults[key]} if key in defaults else {}

    def origin_of(place: str) -> str:
        for key, origin in origins.items():
            if place == key or place.startswith((f"{key}.", f"{key}[")):
                return origin
        section = f"{place}." if place else ""
        inside = [text for key, text in origins.items() if key.startswith(section)]
        return "".join([text for text in inside if text.startswith(" (override")][-3:])

    try:
        config = Config.model_validate(_nested(values))
    except ValidationError as error:
        problems += describe(error, origin_of)
    if problems:
        more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if problems[_MOST_PROBLEMS:] else []
        raise ConfigError(f"{source}: {'; '.join(problems[:_MOST_PROBLEMS] + more)}")
    if notes:
        warnings.warn("; ".join(notes), ConfigWarning, stacklevel=3)
    return config


def _read(
    layers: Sequence[tuple[str, Any]], source: str, overrides: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, Any], list[str]]]:
    """Yield name, origin for messages, values by dotted name, and problems of each layer."""
    for name, tree in layers:
        if not isinstance(tree, Mapping):
            raise ConfigError(f"{name}: must hold sections such as networks:, got {show(tree)}")
        problems: list[str] = []
        origin = "" if name == source else f" (from {name})"
        yield name, origin, _flatten(tree, problems), problems
    for text in overrides:
        name = f"override {text if len(text) <= 100 else text[:97] + '...'}"
        yield name, f" ({name})", _override(text, name), []


def _flatten(tree: Mapping[Any, Any], problems: list[str], section: str = "") -> dict[str, Any]:
    """Return values by dotted name, lists as tuples; add unknown keys to problems."""
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
            values[path] = _tupled(item)
        else:
            # The nearest key takes a while to find.
            problems.append(unknown_key(path) if len(problems) < 10 else path)
    return values


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as sections."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *sections, leaf = path.split(".")
        node = tree
        for name in sections:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def _override(text: str, source: str) -> dict[str, Any]:
    """Return the value that an override sets, by its dotted name."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(f"{source}: must read section.key=value, such as learning.gamma=0.95")
    if path in SECTIONS:
        example = next(key for key in KEYS if key.startswith(f"{path}."))
        raise ConfigError(f"{source}: {path} is a section; name one key of it, such as {example}")
    for key in KEYS:
        if path.startswith(f"{key}."):
            raise ConfigError(f"{source}: {key} is a value, not a section; write {key}=... instead")
    if path not in _KNOWN_KEYS:
        raise ConfigError(f"{source}: {unknown_key(path)}")
    return {path: _tupled(parse_yaml(value, source))}
