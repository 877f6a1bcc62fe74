"""Params files in, `Config` out: loading, overrides, published files, dumping."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marl_framework.config.errors import ConfigError, ConfigWarning
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
_LARGEST_FILE = 2**18  # bytes; a params file has a few thousand

# Keys of the published params.yaml without meaning here.
_OBSOLETE = frozenset(
    {
        "classification",
        "evaluation.metrics",
        "evaluation.repetitions",
        "experiment.missions.action_space",
        "experiment.missions.class_weighting",
        "experiment.missions.planning_uncertainty",
        "experiment.missions.reward_normalization",
        "experiment.uav.max_a",
        "experiment.uav.max_v",
        "experiment.uav.sampling_time",
        "networks.actor.momentum",
        "networks.critic.momentum",
        "networks.critic.synchronization",
        "networks.critic.update_mode",
        "sensor.encoding",
    }
)
# Values of the published file that mean something else here, see _translate.
_RENAMED = {
    "sensor.model.type": "altitude_dependent",
    "sensor.simulation.type": "random_field",
}


def resolve_config_path(name: str) -> Path:
    """Find a params file: an absolute path, one from here, or a name in `params/`.

    Raises:
        ConfigError: there is no such file; names the files of `params/`.
    """
    candidates = [Path(name), PARAMS / name, PARAMS / f"{name}.yaml"]
    for candidate in candidates:
        if name and os.path.isfile(candidate):  # unlike Path.is_file: never raises
            return candidate
    if name and os.path.isdir(name):
        raise ConfigError(f"{name}: is a directory, not a params file")
    if name and os.path.exists(name):  # a pipe: `<(sed … params.yaml)`
        return Path(name)
    known = ", ".join(sorted(path.name for path in PARAMS.glob("*.yaml")))
    shown = name if name.strip() and name.isprintable() else repr(name)
    raise ConfigError(f"{shown}: no such file; params/ holds {known or 'none'}")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override and check a params file.

    Args:
        path: see `resolve_config_path`.
        overrides: `section.key=value` each, value in YAML; a later one wins.

    Raises:
        ConfigError: one line that names the file or override, the key, and what is right.
    """
    file = resolve_config_path(str(path))
    source = str(file)
    tree = parse_yaml(_read(file), source)
    if tree is None:
        raise ConfigError(f"{source}: the file is empty; it must hold sections such as networks:")
    return _build(tree, source, overrides)


def config_from_dict(
    d: Mapping[str, Any], source: str = "configuration", overrides: Sequence[str] = ()
) -> Config:
    """Override and check plain data, such as that of a checkpoint; `source` names it in messages.

    Raises:
        ConfigError: as of `load_config`.
    """
    return _build(d, source, overrides)


def config_to_dict(config: Config) -> dict[str, Any]:
    """Plain data of all keys under their YAML names: numbers, texts, lists, dictionaries."""
    plain: dict[str, Any] = _listed(config.model_dump(by_alias=True))
    return plain


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
    return list(value) if isinstance(value, tuple) else value


def _read(file: Path) -> str:
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


def _build(tree: Any, source: str, overrides: Sequence[str]) -> Config:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{source}: must hold sections such as networks:, got {show(tree)}")
    tree = _copy(tree, "")
    texts = [(_override(tree, text), text) for text in overrides]

    def blame(path: str) -> str:
        guilty = [text for key, text in texts if not path or f"{key}.".startswith(f"{path}.")]
        return f" (override {', '.join(guilty[-3:])})" if guilty else ""

    problems: list[str] = []
    without_effect = _translate(tree, problems)
    known = _known_part(tree, "", problems)
    try:
        config = Config.model_validate(known)
    except ValidationError as error:
        problems += describe(error, blame)
    if problems:
        raise ConfigError(f"{source}: {join_problems(problems)}")
    if without_effect:
        warnings.warn(
            f"{source}: these keys have no effect any more: {', '.join(without_effect)}",
            ConfigWarning,
            stacklevel=3,
        )
    return config


def _copy(value: Any, path: str) -> Any:
    """Own dictionaries for all sections; a section without keys (null) is an empty one."""
    if path not in SECTIONS:
        return value
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return value
    return {key: _copy(item, join(path, key)) for key, item in value.items()}


def _override(tree: dict[Any, Any], text: str) -> str:
    """Set one key of the tree; gives its dotted name."""
    path, equals, value = text.partition("=")
    path = path.strip()
    source = f"override {text if len(text) <= 100 else text[:97] + '...'}"
    if not equals or not path:
        raise ConfigError(f"{source}: must read section.key=value, such as networks.gamma=0.95")
    if path in SECTIONS:
        example = next(key for key in KEYS if key.startswith(f"{path}."))
        raise ConfigError(f"{source}: {path} is a section; name one key of it, such as {example}")
    _refuse_unknown(path, source)
    parsed = parse_yaml(value, source)
    *parents, leaf = path.split(".")
    node: Any = tree
    for name in parents:
        node = node.setdefault(name, {}) if isinstance(node, dict) else None
    if isinstance(node, dict):  # else: the file has no section there, which is reported later
        node[leaf] = parsed
    return path


def _refuse_unknown(path: str, source: str) -> None:
    parts = path.split(".")
    for length in range(1, len(parts)):
        parent = ".".join(parts[:length])
        if parent in KEYS:
            raise ConfigError(
                f"{source}: {parent} is a value, not a section; write {parent}=... instead"
            )
    if path not in KEYS and path not in _OBSOLETE and path not in _RENAMED:
        raise ConfigError(f"{source}: {unknown_key(path)}")


def _translate(tree: dict[Any, Any], problems: list[str]) -> list[str]:
    """Turn the published file's keys into ours, in place; gives those without effect."""
    dropped = [path for path in sorted(_OBSOLETE) if _remove(tree, path)]
    model = _section(tree, "sensor", "model")
    if model.get("type") == _RENAMED["sensor.model.type"]:
        model["type"] = "table"
        dropped += [f"sensor.model.{k}" for k in ("coeff_a", "coeff_b") if _remove(model, k)]
    simulation = _section(tree, "sensor", "simulation")
    if "type" in simulation:
        kind = simulation.pop("type")
        if kind != _RENAMED["sensor.simulation.type"]:
            problems.append(
                f"sensor.simulation.type: must be absent or random_field, got {show(kind)}; "
                f"terrains are named by sensor.simulation.kinds"
            )
        simulation.setdefault("kinds", ["split"])
        dropped.append("sensor.simulation.type")
    return dropped


def _section(tree: Any, *path: str) -> dict[Any, Any]:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def _remove(tree: dict[Any, Any], path: str) -> bool:
    *parents, leaf = path.split(".")
    section = _section(tree, *parents)
    found = leaf in section
    section.pop(leaf, None)
    return found


def _known_part(value: Any, path: str, problems: list[str]) -> Any:
    """The tree without unknown keys, which become problems; lists become tuples."""
    if path not in SECTIONS or not isinstance(value, Mapping):
        return tuple(value) if isinstance(value, list) else value
    known = {}
    for key, item in value.items():
        inner = join(path, key)
        if isinstance(key, str) and "." not in key and (inner in SECTIONS or inner in KEYS):
            known[key] = _known_part(item, inner, problems)
        else:
            # Past a handful they are only counted: the nearest key takes a while to find.
            problems.append(unknown_key(inner) if len(problems) < 10 else inner)
    return known
