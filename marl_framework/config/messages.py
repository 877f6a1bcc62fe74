"""One-line error messages: the key, what is wrong, and what is expected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from marl_framework.config.model import Config
from marl_framework.config.types import LIST, ONE, RANGE

_LONGEST = 60  # maximum number of characters of a value in a message
_FORMS = (ONE, LIST, RANGE, "float", "str", "[key]")
"""Parts of pydantic's locations that are not key names."""
_EXPECTATIONS = {
    "dict_type": "be a mapping such as {a: 1}",
    "extra_forbidden": "be absent",
    "int_type": "be a whole number",
    "missing": "be present",
    "model_type": "be a section with keys below it",
    "tuple_type": "be a list such as [a, b]",
}
"""Expectations that replace pydantic messages which mention Python types."""


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the dotted name of each section and key, and whether the name is a section."""
    for name, field in model.model_fields.items():
        path, inner = prefix + (field.alias or name), field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield path, True
            yield from _names(inner, f"{path}.")
        else:
            yield path, False


_NAMES = dict(_names(Config))
SECTIONS = frozenset({"", *(name for name, is_section in _NAMES.items() if is_section)})
"""Dotted names of all sections; the empty name means the whole configuration."""
KEYS = tuple(name for name, is_section in _NAMES.items() if not is_section)
"""Dotted names of all keys with a value, in file order."""


def join(section: str, key: object) -> str:
    """Return the dotted name of a key in a section."""
    name = key if isinstance(key, str) else show(key)
    return f"{section}.{name}" if section else name


def show(value: object) -> str:
    """Format a value as short YAML text; safe for huge and nested values."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.12g}"
    try:
        text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**30)
    except (ValueError, RecursionError, yaml.YAMLError):  # a huge number, or not plain data
        return f"a value of type {type(value).__name__}"
    text = " ".join(text.removesuffix("...\n").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def unknown_key(path: str) -> str:
    """Return the message for an unknown dotted name; suggest the most similar known name."""
    shown = path if len(path) <= 100 else path[:97] + "..."
    if path in _NAMES:
        return f"unknown key {shown!r} contains dots; write nested sections instead"

    def similarity(known: str) -> float:  # the last part has twice the weight
        pairs = ((shown.rpartition(".")[2], known.rpartition(".")[2]), (shown, known))
        leaf, whole = (SequenceMatcher(a=a.lower(), b=b.lower()).ratio() for a, b in pairs)
        return 2 * leaf + whole

    nearest = max((*KEYS, *sorted(SECTIONS - {""})), key=similarity)
    return f"unknown key {shown}; the nearest known key is {nearest}"


def describe(error: ValidationError, origin: Callable[[str], str]) -> list[str]:
    """Return one message per key, followed by the origin of the value."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for entry in error.errors(include_url=False):
        if entry["type"] == "too_short" and entry["input"]:
            continue  # the entries have their own errors
        parts = (part for part in entry["loc"] if part not in _FORMS)
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts)
        grouped.setdefault(place.removeprefix("."), []).append(entry)
    return [_problem(place, entries) + origin(place) for place, entries in grouped.items()]


def _problem(place: str, entries: Sequence[Mapping[str, Any]]) -> str:
    first = entries[0]
    prefix = f"{place}: " if place else ""
    if first["type"] == "value_error":
        of_section = isinstance(first["input"], Mapping)
        got = "" if of_section else f", got {show(first['input'])}"
        return f"{prefix}{first['ctx']['error']}{got}"
    texts = (re.sub(r"^\w+ should | after validation.*", "", entry["msg"]) for entry in entries)
    pairs = zip(entries, texts, strict=True)
    wanted = " or ".join(dict.fromkeys(_EXPECTATIONS.get(e["type"], text) for e, text in pairs))
    if first["type"].endswith("_type") and ONE in first["loc"]:
        wanted += " or a list of such"
    return f"{prefix}must {wanted}, got {show(first['input'])}".replace(" or be ", " or ")
