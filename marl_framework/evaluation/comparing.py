"""Flies comparisons and writes what they find, with the figures that options ask for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_framework.evaluation import comparison, mission_page, report
from marl_framework.evaluation.figures import worlds_figure
from marl_framework.evaluation.flight import FlightRecord

_REFRESH = 20
"""Seconds after which a page that follows a training run loads itself again."""


def fly_and_write(
    prepared: Mapping[str, comparison.Comparison], out: Path, options: argparse.Namespace
) -> tuple[str, list[Path]]:
    """Fly the comparison of each world, and write it before it is drawn.

    Several have their figures in folders of their own, and an overview.

    Args:
        prepared: by the name of the world.
        out: existing folder.
        options: `html`, `no_figures` and `watch` of `evaluate`.

    Returns:
        The tables and the files.
    """
    if len(prepared) > 1:
        return _fly_all(prepared, out, options)
    (flights,) = prepared.values()
    records = flights.fly()
    found = flights.results(records)
    text = report.table_text(found)
    files = comparison.write(text, found, out)
    return text, [*files, *_draw(records, found, out, options)]


def _fly_all(
    prepared: Mapping[str, comparison.Comparison], out: Path, options: argparse.Namespace
) -> tuple[str, list[Path]]:
    texts: list[str] = []
    worlds: list[dict[str, Any]] = []
    drawings: list[Path] = []
    for name, flights in prepared.items():
        print(name, flush=True)
        records = flights.fly()
        found = flights.results(records)
        texts.append(f"{name}\n{report.table_text(found)}")
        worlds.append({"name": name, **found})
        text = "\n".join([*texts, report.as_text(report.overview(worlds))])
        files = comparison.write(text, {"combinations": worlds}, out)
        drawings += _draw(records, found, out / name, options)
    if not options.no_figures:
        worlds_figure(worlds, out / "worlds.png")
        drawings.append(out / "worlds.png")
    return text, [*files, *drawings]


def _draw(
    records: Mapping[str, FlightRecord],
    found: Mapping[str, Any],
    folder: Path,
    options: argparse.Namespace,
) -> list[Path]:
    """Draw a comparison as the options ask; return the files."""
    files: list[Path] = []
    if options.html or not options.no_figures:
        folder.mkdir(exist_ok=True)
    if not options.no_figures:
        files += comparison.draw(records, found, folder)
    if options.html:
        files.append(folder / "mission.html")
        refresh = None if options.watch is None else _REFRESH
        mission_page.write_page(records, 0, files[-1], refresh)
    return files
