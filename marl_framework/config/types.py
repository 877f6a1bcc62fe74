"""Base class and value types of the configuration sections.

Every number has a largest value: what lies beyond it is a slip of the keyboard, and would
overflow or run out of memory far from here. Texts are one printable line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)

from marl_framework.config.parts import ALGORITHMS, NETWORKS, PLANNER_NAMES, SENSORS, TERRAINS


class Section(BaseModel):
    """Base of all sections: immutable, strict about types, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _one_printable_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def _device_name(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise ValueError("must be auto, cpu, cuda or cuda:N")
    return text


def _dotted_path(text: str) -> str:
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*\.)+[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError("must be a dotted path such as my_module.name")
    return text


def _one_of_or_own(*names: str) -> Callable[[str], str]:
    """Return a check that a text is one of some names, or the dotted path of a user's own."""

    def check(text: str) -> str:
        if text in names:
            return text
        try:
            return _dotted_path(text)
        except ValueError:
            known = ", ".join(map(repr, names))
            raise ValueError(
                f"must be one of {known}, or a dotted path such as my_module.Mine"
            ) from None

    return check


def _value_or_percentile(threshold: float | str) -> float | str:
    if isinstance(threshold, str) and not (
        re.fullmatch(r"p[0-9]{1,2}(\.[0-9]{1,9})?", threshold) and float(threshold[1:]) > 0
    ):
        raise ValueError("must be a number or a percentile between p0 and p100, such as p60")
    return threshold


def _radio_range(metres: float) -> float:
    if math.isnan(metres) or (metres > 1e6 and not math.isinf(metres)):
        raise ValueError("must be at most 1000000 metres, or .inf")
    return metres


T = TypeVar("T")
ONE, LIST = "one value", "list of values"
"""How errors name the two forms of a `Drawn` key."""


def _form(value: Any) -> str:
    return LIST if isinstance(value, list | tuple) else ONE


Drawn = Annotated[
    Annotated[T, Tag(ONE)]
    | Annotated[tuple[T, ...], Field(min_length=1, max_length=1000), Tag(LIST)],
    Discriminator(_form),
]
"""One value for all missions, or a list that each mission draws from."""


def choices(value: T | tuple[T, ...]) -> tuple[T, ...]:
    """Return what missions draw a `Drawn` value from: one value stands for itself."""
    return value if isinstance(value, tuple) else (value,)


PRETRAINED_PREDICTOR = "pretrained:predictor"
"""The map predictor that comes with the library."""


def _text_of_number(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _shipped_predictor(value: Any) -> Any:
    return PRETRAINED_PREDICTOR if value is None else value  # configurations of older runs


def _can_be_held(prior: float) -> float:
    if not 1e-4 <= prior <= 1 - 1e-4:  # mission.belief.PROBABILITY_FLOOR
        raise ValueError("must be 0.0001 to 0.9999, where beliefs are kept")
    return prior


Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1), AfterValidator(_can_be_held)]
Noise = Annotated[float, Field(gt=0, lt=0.5)]
Scale = Annotated[float, Field(ge=-1e6, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1)]
Metres = Annotated[float, Field(ge=1e-3, le=1e6)]
Point = tuple[Annotated[float, Field(ge=-90, le=90)], Annotated[float, Field(ge=-180, le=180)]]
"""(latitude, longitude) in WGS 84 [degrees]."""
Angle = Annotated[float, Field(ge=1, le=175)]
Range = Annotated[float, Field(ge=0, allow_inf_nan=True), AfterValidator(_radio_range)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Interval = Annotated[int, Field(ge=0, le=10**9)]
Width = Annotated[int, Field(ge=1, le=2**16)]
Threshold = Annotated[float | str, AfterValidator(_value_or_percentile)]
Device = Annotated[str, AfterValidator(_device_name)]
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_one_printable_line)
]
Key = Annotated[Text, BeforeValidator(_text_of_number)]
"""Name of a thing in a file, or its number."""
Predictor = Annotated[Text, BeforeValidator(_shipped_predictor)]
Name = Annotated[str, Field(max_length=1000)]
DottedPath = Annotated[Name, AfterValidator(_dotted_path)]
TerrainKind = Annotated[Name, AfterValidator(_one_of_or_own(*TERRAINS, "mixed"))]
Policy = Annotated[Name, AfterValidator(_one_of_or_own(*PLANNER_NAMES))]
Algorithm = Annotated[Name, AfterValidator(_one_of_or_own(*ALGORITHMS))]
NetworkType = Annotated[Name, AfterValidator(_one_of_or_own(*NETWORKS))]
SensorType = Annotated[Name, AfterValidator(_one_of_or_own(*SENSORS))]
