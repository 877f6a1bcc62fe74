"""Text of results: tables for terminals and in Markdown, durations and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from marl_framework.evaluation.report import as_text


def table_text(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text; the first column is left-aligned, the others right-aligned."""
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for number, name in enumerate(header):  # Text: brackets are not markup
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return as_text(table)


def fenced(text: str) -> str:
    """Return a benchmark's output as a Markdown code block."""
    return f"```\n{text.strip(chr(10))}\n```"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines).replace("|  |", "| |")


def duration_text(seconds: float | None) -> str:
    """Return a duration with three digits and a unit; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"−{duration_text(-seconds)}"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{seconds / size:.3g}") >= 1:  # 999.6 µs round to 1 ms
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def quartiles_text(row: Mapping[str, Any]) -> str:
    """Return a row's quartiles as a range."""
    return f"{duration_text(row['lower_quartile'])} … {duration_text(row['upper_quartile'])}"


def number_text(value: float | None, form: str, unit: str = "") -> str:
    """Return a formatted number with a unit; a dash for None."""
    return "–" if value is None else f"{value:{form}}{unit}"
