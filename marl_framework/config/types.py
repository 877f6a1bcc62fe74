"""Base class and value types of the configuration sections.

Numbers have upper limits, to detect typing errors. Texts are one printable line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

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

from marl_framework.config.parts import (
    ALGORITHMS,
    DETECTORS,
    NETWORKS,
    PLANNER_NAMES,
    SENSORS,
    TERRAINS,
)


class Section(BaseModel):
    """Base of all sections: immutable, strict about types, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def must(accept: Callable[[Any], object], expectation: str) -> AfterValidator:
    """Return a validator that raises a ValueError unless a value is accepted."""

    def check(value: Any) -> Any:
        if not accept(value):
            raise ValueError(f"must be {expectation}")
        return value

    return AfterValidator(check)


_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_is_dotted = re.compile(rf"({_NAME}\.)+{_NAME}").fullmatch


def _one_of_or_custom(*names: str) -> AfterValidator:
    """Return a validator for one of the names, or a dotted path."""
    known = ", ".join(map(repr, names))
    return must(
        lambda text: text in names or _is_dotted(text),
        f"one of {known}, or a dotted path such as my_module.Mine",
    )


def _is_threshold(value: float | str) -> bool:
    if not isinstance(value, str):
        return True
    return bool(re.fullmatch(r"p[0-9]{1,2}(\.[0-9]{1,9})?", value)) and float(value[1:]) > 0


T = TypeVar("T")
ONE, LIST, RANGE = "one value", "list of values", "range of values"
"""Names of the forms of a `Drawn` or `Spread` key in pydantic's errors."""


def _form(value: Any) -> str:
    return LIST if isinstance(value, list | tuple) else ONE


def _form_or_range(value: Any) -> str:
    return RANGE if isinstance(value, dict) else _form(value)


Drawn = Annotated[
    Annotated[T, Tag(ONE)]
    | Annotated[tuple[T, ...], Field(min_length=1, max_length=1000), Tag(LIST)],
    Discriminator(_form),
]
"""One value for all missions, or a list from which each mission draws a value."""


def _low_comes_first(ends: dict[str, float]) -> dict[str, float]:
    if len(ends) < 2:
        raise ValueError("must have both low and high")
    if ends["low"] > ends["high"]:
        raise ValueError(f"low {ends['low']:g} is above high {ends['high']:g}")
    return ends


Ends = dict[Literal["low", "high"], T]

Spread = Annotated[
    Annotated[T, Tag(ONE)]
    | Annotated[tuple[T, ...], Field(min_length=1, max_length=1000), Tag(LIST)]
    | Annotated[Ends[T], AfterValidator(_low_comes_first), Tag(RANGE)],
    Discriminator(_form_or_range),
]
"""One value for all missions, or a list or `{low: a, high: b}` from which each mission draws."""


def spans(value: T | tuple[T, ...] | Ends[T]) -> tuple[tuple[T, T], ...]:
    """Return the values of a `Spread` key as intervals; a single value has no length."""
    if isinstance(value, dict):
        return ((value["low"], value["high"]),)
    return tuple((one, one) for one in choices(value))


def choices(value: T | tuple[T, ...]) -> tuple[T, ...]:
    """Return the values of a `Drawn` key as a tuple."""
    return value if isinstance(value, tuple) else (value,)


PRETRAINED_PREDICTOR = "pretrained:predictor"
"""Map predictor included in the library."""

Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
# The limits follow kernels.cells.PROBABILITY_FLOOR.
Probability = Annotated[
    float,
    Field(gt=0, lt=1),
    must(lambda p: 1e-4 <= p <= 1 - 1e-4, "0.0001 to 0.9999, the range of beliefs"),
]
Noise = Annotated[float, Field(gt=0, lt=0.5)]
Scale = Annotated[float, Field(ge=-1e6, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1)]
Metres = Annotated[float, Field(ge=1e-3, le=1e6)]
Point = tuple[Annotated[float, Field(ge=-90, le=90)], Annotated[float, Field(ge=-180, le=180)]]
"""(latitude, longitude) in WGS 84 [degrees]."""
Deviation = Annotated[float, Field(ge=0, le=100)]
"""Standard deviation of a position [m]."""
Factor = Annotated[float, Field(ge=0, le=10)]
Addition = Annotated[float, Field(ge=-1, le=1)]
Pixel = Annotated[float, Field(ge=-1e6, le=1e6)]
"""Column or row of an image; pixel centres have whole numbers."""
Distortion = Annotated[float, Field(ge=-10, le=10)]
Band = Annotated[int, Field(ge=0, le=1000)]
Limit = Annotated[float, Field(ge=-1e9, le=1e9)]
Wind = Annotated[float, Field(ge=0, le=0.9)]
Burst = Annotated[float, Field(ge=1, le=1000)]
Delay = Annotated[int, Field(ge=0, le=8)]
Angle = Annotated[float, Field(ge=1, le=175)]
Range = Annotated[
    float,
    Field(ge=0, allow_inf_nan=True),
    must(lambda metres: metres <= 1e6 or metres == math.inf, "at most 1000000 metres, or .inf"),
]
Count = Annotated[int, Field(ge=1, le=10**9)]
Interval = Annotated[int, Field(ge=0, le=10**9)]
Width = Annotated[int, Field(ge=1, le=2**16)]
Threshold = Annotated[
    float | str, must(_is_threshold, "a number or a percentile between p0 and p100, such as p60")
]
Device = Annotated[
    str,
    must(re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?").fullmatch, "auto, cpu, cuda or cuda:N"),
]
Text = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1000),
    must(str.isprintable, "one line of printable text"),
]
Key = Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""Name or number of an entry in a file."""
Predictor = Annotated[Text, BeforeValidator(lambda value: value or PRETRAINED_PREDICTOR)]
"""Run folder or checkpoint of a map predictor; null = the included one."""
Name = Annotated[str, Field(max_length=1000)]
DottedPath = Annotated[Name, must(_is_dotted, "a dotted path such as my_module.name")]
TerrainKind = Annotated[Name, _one_of_or_custom(*TERRAINS, "mixed")]
TerrainKinds = Annotated[tuple[TerrainKind, ...], Field(min_length=1, max_length=100)]
Policy = Annotated[Name, _one_of_or_custom(*PLANNER_NAMES)]
Algorithm = Annotated[Name, _one_of_or_custom(*ALGORITHMS)]
NetworkType = Annotated[Name, _one_of_or_custom(*NETWORKS)]
SensorType = Annotated[Name, _one_of_or_custom(*SENSORS)]
Detector = Annotated[Name, _one_of_or_custom(*DETECTORS)]
