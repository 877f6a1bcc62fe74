"""List the sources of the figures in README and docs/: `python -m benchmarks.figures_of_pages`.

A figure is a number outside of code that has a unit, a ± or an interval, or the form entropy / F1.
Its source is the JSON of its table, a key in `figures_of_pages.yaml`, or the reason there why it
has none. An interval may repeat one of its page's tables. Problems are a figure without a source, a
value that its JSON does not have, and an entry without a figure; the exit code is then 1.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import tables
from benchmarks.helpers.command_line import RESULTS
from marl_framework.command_line import Parser

LIST = Path(__file__).with_suffix(".yaml")
ANYWHERE = "any page"

_SCALES = {
    **{"%": 100.0, "ms": 1e3, "µs": 1e6, "min": 1 / 60, "minutes": 1 / 60, "million": 1e-6},
    **{"kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "GiB": 2.0**-30, "GB/s": 1e-9, "TB/s": 1e-12},
    **{"GFLOP": 1e-9, "GFLOP/s": 1e-9, "TFLOP/s": 1e-12},
}
"""Factor from a value of a JSON to each unit; 1 for all others."""
_OTHERS = ("bit", "nat", "s", "m", "hours", "times", "transitions/s", "joint steps/s", "Gbit/s")
_NUMBER = r"(?<![\w.,])[−+-]?\d[\d,]*(?:\.\d+)?"
_UNIT = "|".join(re.escape(unit) for unit in sorted([*_SCALES, *_OTHERS], key=len, reverse=True))
FIGURE = re.compile(
    rf"{_NUMBER}\s\[{_NUMBER},\s{_NUMBER}\]"
    rf"|{_NUMBER} ± {_NUMBER}|{_NUMBER} / {_NUMBER}(?![\w/])|{_NUMBER} ?(?:{_UNIT})(?![\w/])"
)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
_STEP = re.compile(r"([\w+:]+)(?:\[(.*)\])?")


@dataclass(frozen=True)
class Figure:
    """A number of a page."""

    page: str
    line: int
    text: str
    table: str | None = None
    """Marker of its table."""

    @property
    def parts(self) -> list[str]:
        """Its numbers: two with ± or /, three with an interval."""
        return re.findall(_NUMBER, self.text)

    @property
    def scale(self) -> float:
        """Factor from a value of a JSON to this figure."""
        return _SCALES.get(re.split(r"[\d ]", self.text)[-1], 1.0)


def figures(page: str, text: str) -> Iterator[Figure]:
    """Yield the figures of a page in order, including those of tables."""
    spans = [(found.span(), found[2]) for found in tables.MARKED.finditer(text)]

    def blank(found: re.Match[str]) -> str:
        inside = any(a <= found.start() < b for (a, b), _ in spans)
        return found[0] if inside else re.sub(r"[^\n]", "\0", found[0])

    for found in FIGURE.finditer(_CODE.sub(blank, text)):
        marker = next((m for (a, b), m in spans if a <= found.start() < b), None)
        line = text.count("\n", 0, found.start()) + 1
        yield Figure(page, line, " ".join(found[0].split()), marker)


# Values of JSON ---------------------------------------------------------------------------


def value(source: str, folder: Path = RESULTS) -> float:
    """Return the value of `FILE KEY`, or a quotient of such values or numbers.

    A key is names joined by dots; `rows[num_envs=64,compiled=true]` chooses from a list.

    Raises:
        ValueError: the file or the key does not exist.
    """
    top, _, below = source.rpartition(" / ")
    if top:
        return value(top, folder) / value(below, folder)
    name, _, key = source.partition(" ")
    if not key:
        return float(name)
    try:
        found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for step in re.split(r"\.(?![^\[]*\])", key):
            found = _step(found, step)
        return float(found)
    except (OSError, LookupError, StopIteration, TypeError) as error:
        raise ValueError(f"{source}: no such file or key ({type(error).__name__})") from error


def _step(found: Any, step: str) -> Any:
    parts = _STEP.fullmatch(step)
    if parts is None:
        raise KeyError(step)
    found = found[parts[1]]
    if parts[2] is None:
        return found
    if parts[2].isdigit():
        return found[int(parts[2])]
    wanted = dict(each.split("=") for each in parts[2].split(","))
    return next(row for row in found if all(str(row[k]).lower() == v for k, v in wanted.items()))


def is_shown(figure: Figure, sources: Sequence[str], folder: Path = RESULTS) -> bool:
    """Return whether the rounded values of the sources are the figure's numbers."""
    if len(sources) != len(figure.parts):
        return False
    for text, source in zip(figure.parts, sources, strict=True):
        number = float(text.replace(",", "").replace("−", "-"))
        decimals = len(text.partition(".")[2])
        error = abs(value(source, folder) * figure.scale - number)
        if error > 0.5001 * 10.0**-decimals:
            return False
    return True


# The list ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """Sources and reasons of the list, by page and text."""

    sources: Mapping[tuple[str, str], list[str]]
    reasons: Mapping[tuple[str, str], str]


def read_list(file: Path = LIST) -> Known:
    """Read the list of sources and of explained exceptions."""
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    sources = {
        (page, text): source.split(" & ")
        for page, entries in tree["sources"].items()
        for text, source in entries.items()
    }
    reasons = {
        (page, text): each["reason"]
        for each in tree["exceptions"]
        for page, texts in each["figures"].items()
        for text in texts
    }
    return Known(sources, reasons)


def origins(
    found: Sequence[Figure], known: Known, folder: Path = RESULTS
) -> tuple[list[tuple[Figure, str]], list[str]]:
    """Return the source of each figure, and the problems."""
    named, problems, used = [], [], set()
    in_tables = {(f.page, f.text): f.table for f in found if f.table and len(f.parts) == 3}
    for figure in found:
        here, anywhere = (figure.page, figure.text), (ANYWHERE, figure.text)
        where = f"{figure.page}:{figure.line}: {figure.text}"
        if figure.table is not None:
            files = tables.TABLES[figure.table.split()[0]].files
            named.append((figure, f"{', '.join(files)}: table {figure.table}"))
        elif here in in_tables:
            named.append((figure, f"table {in_tables[here]}"))
        elif here in known.sources:
            used.add(here)
            sources = known.sources[here]
            named.append((figure, " and ".join(sources)))
            try:
                if not is_shown(figure, sources, folder):
                    values = [value(source, folder) * figure.scale for source in sources]
                    problems.append(f"{where}: its JSON has {values}")
            except ValueError as error:
                problems.append(f"{where}: {error}")
        elif here in known.reasons or anywhere in known.reasons:
            key = here if here in known.reasons else anywhere
            used.add(key)
            named.append((figure, f"no JSON: {known.reasons[key]}"))
        else:
            problems.append(f"{where}: neither a source nor a reason in {LIST.name}")
    for page, text in [key for key in (*known.sources, *known.reasons) if key not in used]:
        problems.append(f"{LIST.name}: {page} has no {text}")
    return named, problems


def all_figures() -> list[Figure]:
    """Return the figures of README and docs/."""
    return [
        figure
        for page in tables.page_files()
        for figure in figures(str(page.relative_to(tables.ROOT)), page.read_text(encoding="utf-8"))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sources of all figures; return 0, or 1 if there are problems."""
    Parser(prog="python -m benchmarks.figures_of_pages", description=__doc__).parse_args(arguments)
    named, problems = origins(all_figures(), read_list())
    for figure, source in named:
        print(f"{figure.page}:{figure.line}: {figure.text}: {source}")
    kinds = Counter("no JSON" if source.startswith("no JSON") else "JSON" for _, source in named)
    print(f"{kinds['JSON']} figures from JSON, {kinds['no JSON']} explained, {len(problems)} not")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
