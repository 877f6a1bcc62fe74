"""Problems of a configuration in one plain line: which key, what is wrong, what is right."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from marl_framework.config.model import Config
from marl_framework.config.types import LIST, ONE

_MOST_PROBLEMS = 8


def _tree(model: type[BaseModel], prefix: str = "") -> tuple[list[str], list[str]]:
    sections, keys = [prefix.removesuffix(".")], []
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner_sections, inner_keys = _tree(field.annotation, path + ".")
            sections += inner_sections
            keys += inner_keys
        else:
            keys.append(path)
    return sections, keys


_sections, _keys = _tree(Config)
SECTIONS = frozenset(_sections)
"""Dotted names of all sections; the empty name is the whole configuration."""
KEYS = tuple(_keys)
"""Dotted names of all keys that hold a value, in the order of the files."""
_WORLDS = "prediction.worlds"  # the list whose entries are sections


def join(section: str, key: object) -> str:
    """Dotted name of a key of a section."""
    name = key if isinstance(key, str) else show(key)
    return f"{section}.{name}" if section else name


def show(value: object) -> str:
    """Short text of a value, as YAML would write it; safe for huge and nested values."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 100:
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    if isinstance(value, float):
        return f"{value:.12g}"
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    short.maxlong = 40
    short.maxlevel = 3
    try:
        return short.repr(list(value) if isinstance(value, tuple) else value)
    except ValueError:  # a nested integer with more digits than Python prints
        return f"a {type(value).__name__}"


def unknown_key(path: str) -> str:
    """Say that a dotted name is no key, and name the nearest one anywhere in the tree."""
    shown = path if len(path) <= 100 else path[:97] + "..."
    if path in KEYS or path in SECTIONS:
        return f"unknown key {shown!r} with dots in it; write its sections one inside the other"
    return f"unknown key {shown}; the nearest known key is {_nearest(shown)}"


def _nearest(path: str) -> str:
    """The known name most like `path`: the last part counts most, then the whole."""

    def likeness(known: str) -> float:
        leaf, whole = (
            difflib.SequenceMatcher(a=a.lower(), b=b.lower()).ratio()
            for a, b in ((path.rpartition(".")[2], known.rpartition(".")[2]), (path, known))
        )
        return 2 * leaf + whole

    return max((*KEYS, *sorted(SECTIONS - {""})), key=likeness)


def join_problems(problems: Sequence[str]) -> str:
    """Join problems to one line; past a handful the rest is only counted."""
    shown = list(problems[:_MOST_PROBLEMS])
    if len(problems) > _MOST_PROBLEMS:
        shown.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    return "; ".join(shown)


def describe(error: ValidationError, blame: Callable[[str], str]) -> list[str]:
    """One problem a key in plain words.

    Args:
        error: what the models found.
        blame: dotted name to a note that ends the problem (which override set it), or "".
    """
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    paths: dict[str, str] = {}
    for entry in error.errors(include_url=False):
        if entry["type"] == "too_short" and entry["input"]:
            continue  # its entries have errors of their own
        path, place = _place(entry["loc"])
        grouped.setdefault(place, []).append(entry)
        paths[place] = path
    return [_problem(place, grouped[place]) + blame(paths[place]) for place in grouped]


def _place(location: tuple[int | str, ...]) -> tuple[str, str]:
    """Dotted name of a key, and the same with the entry of its list or table."""
    path = ""
    rest = list(location)
    while rest and (join(path, rest[0]) in SECTIONS or join(path, rest[0]) in KEYS):
        path = join(path, rest.pop(0))
    if rest and rest[0] in (ONE, LIST):
        rest.pop(0)
    if rest and (isinstance(rest[0], int) or path.endswith(".table")):
        below = rest[1:] if path == _WORLDS else []
        place = f"{path}[{rest[0]}]"
        for part in below:
            place += f"[{part}]" if isinstance(part, int) else f".{part}"
        return path, place
    return path, path


def _problem(place: str, entries: Sequence[Mapping[str, Any]]) -> str:
    first = entries[0]
    prefix = f"{place}: " if place else ""
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        return prefix + (text if place in SECTIONS else f"{text}, got {show(first['input'])}")
    wanted = " or ".join(dict.fromkeys(_expectation(entry) for entry in entries))
    if first["type"].endswith("_type") and ONE in first["loc"]:
        wanted = f"{wanted} or a list of such"
    return f"{prefix}must be {wanted}, got {show(first['input'])}"


_EXPECTATIONS = {
    "bool_type": "true or false",
    "dict_type": "a table such as {{5: 0.01, 15: 0.4}}",
    "extra_forbidden": "absent",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
    "missing": "there: the list is too short",
    "model_type": "a section with keys below it",
    "string_too_long": "a text of at most {max_length} characters",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_long": "filled with at most {max_length} entries",
    "too_short": "filled with at least {min_length} entry",
    "tuple_type": "a list such as [a, b]",
}


def _expectation(entry: Mapping[str, Any]) -> str:
    kind, value = entry["type"], entry["input"]
    if kind == "float_type" and isinstance(value, int) and not isinstance(value, bool):
        return "a number of ordinary size"  # too large to become a float
    limits = {
        name: f"{limit:.12g}" if isinstance(limit, float) else str(limit)
        for name, limit in entry.get("ctx", {}).items()
    }
    return _EXPECTATIONS.get(kind, "a value of the right kind").format(**limits)
