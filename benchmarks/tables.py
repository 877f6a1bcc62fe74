"""Writes the tables of README and docs/ from the JSON in benchmarks/results/: `make tables`.

    python -m benchmarks.tables [--check]

A table stands between `<!-- table: NAME WORDS -->` and `<!-- end -->`; the first word names it in
`TABLES`, others are passed on. `--check` writes nothing and fails where page and JSON differ.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.helpers import page_tables as pages
from benchmarks.helpers import suite_tables as suites
from benchmarks.helpers.command_line import RESULTS
from benchmarks.learning import (
    ablation,
    algorithms,
    no_fly,
    predicted,
    sample_reuse,
    search_settings,
    stages,
    students,
    update_interval,
)
from benchmarks.speed import (
    busy_machine,
    comparison,
    machine_code,
    network_types,
    ranks,
    search,
    utilisation,
)
from marl_framework.command_line import BAD_INPUT, Parser
from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file

ROOT = RESULTS.parents[1]
MARKED = re.compile(r"(<!-- table: ([^\n]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_HERE = "--amd-epyc-2-cores"  # the machine of the pages


@dataclass(frozen=True)
class Table:
    """A table of the pages."""

    files: tuple[str, ...]
    """In `benchmarks/results/`, without .json."""
    render: Callable[..., str]
    """Called with the content of each file and the words of the marker."""


def _printed(name: str, table: Callable[..., str]) -> Table:
    return Table((name + _HERE,), lambda found: pages.fenced(table(found)))


_WORKERS = tuple(
    f"suite_workers-{world}"
    for world in (
        "split_8_uavs_radio_inf",
        "split_12_uavs_radio_inf",
        "mixed_8_uavs_radio_25",
        "mixed_8_uavs_radio_inf",
        "mixed_4_uavs_radio_inf",
        "throne_held_out_8_uavs_radio_inf",
        "throne_held_out_4_uavs_radio_inf",
    )
)
_SUITE = ("suite", "suite_mixed", "suite_student", "suite_search")
TABLES = {
    "ablation": _printed("ablation", ablation.table),
    "f1_reward": _printed("ablation-8_uavs", ablation.table),
    "predicted": _printed("predicted", predicted.table),
    "stages": _printed("stages", stages.table),
    "students": _printed("students", students.table),
    "algorithms": _printed("algorithms", algorithms.table),
    "no_fly": _printed("no_fly", no_fly.table),
    "sample_reuse": _printed("sample_reuse", sample_reuse.table),
    "update_interval": _printed("update_interval", update_interval.table),
    "ranks": _printed("ranks", ranks.table),
    "utilisation": _printed("utilisation", utilisation.table),
    "search": _printed("search", search.table),
    "search_settings": _printed("search_settings", search_settings.table),
    "comparison": _printed("comparison", comparison.rows_table),
    "rollout": Table(("rollout" + _HERE,), pages.rollout),
    "training": Table(
        tuple(f"training-{kind}{_HERE}" for kind in ("float32", "bfloat16")), pages.training
    ),
    "scaling": Table(("scaling" + _HERE,), pages.scaling),
    "wrappers": Table(("wrappers" + _HERE,), pages.wrappers),
    "network_types": _printed("network_types", network_types.table),
    "busy_machine": _printed("busy_machine", busy_machine.table),
    "machine_code": _printed("machine_code", machine_code.table),
    "kernel_budget": Table(("kernel_budget" + _HERE,), pages.kernel_budget),
    "gpu_bounds": Table(("kernel_budget" + _HERE,), pages.gpu_bounds),
    "prediction_budget": Table(("kernel_budget" + _HERE,), pages.prediction_budget),
    "gpu_memory": Table(("kernel_budget" + _HERE,), pages.gpu_memory),
    "published": Table(
        ("published_simulator-balanced" + _HERE, "published_simulator" + _HERE), pages.published
    ),
    "published_mixed": Table(("published_simulator-mixed" + _HERE,), pages.published_mixed),
    "suite": Table(_SUITE, suites.suite),
    "suite_short": Table(_SUITE, suites.suite_short),
    "suite_teams": Table(_SUITE, suites.suite_teams),
    "suite_students": Table(_SUITE, suites.students),
    "teams": Table(("suite_student_teams",), suites.teams),
    "team_counts": Table(("suite_student_teams",), suites.team_counts),
    "near_search": Table(("suite_student_teams",), suites.near_search),
    "workers": Table(("suite_student_teams", f"stages{_HERE}", *_WORKERS), suites.workers),
    "fresh": Table(("suite_fresh", "suite_fresh_teams"), suites.fresh),
}


def page_files() -> list[Path]:
    """Return README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def table(marker: str, folder: Path = RESULTS) -> str:
    """Return the table that a marker names, from the JSON in `folder`.

    Raises:
        ConfigError: there is no such table, or its JSON is missing or another's.
    """
    name, *words = marker.split()
    if name not in TABLES:
        raise ConfigError(f"table: {marker}: choose from {', '.join(TABLES)}")
    files = [folder / f"{file}.json" for file in TABLES[name].files]
    try:
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        return TABLES[name].render(*found, *words)
    except OSError as error:
        raise ConfigError(f"table: {marker}: {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"table: {marker}: {files[0].name} lacks {error}") from error


def written(text: str, folder: Path = RESULTS) -> str:
    """Return a page with its tables as the JSON in `folder` has them."""
    return MARKED.sub(lambda at: f"{at[1]}\n{table(at[2], folder)}\n\n{at[3]}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check all tables; return 0, 1 where a page differs, 2 for bad input."""
    parser = Parser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on differences")
    check = parser.parse_args(arguments).check
    differing = []
    for page in page_files():
        before = page.read_text(encoding="utf-8")
        try:
            after = written(before)
        except ConfigError as error:
            print(f"error: {page.relative_to(ROOT)}: {error}", file=sys.stderr)
            return BAD_INPUT
        if after != before:
            differing.append(page)
            if not check:
                with atomic_file(page) as file:
                    file.write(after.encode())
    for page in differing:
        print(f"{page.relative_to(ROOT)}: {'differs from its JSON' if check else 'written'}")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
