"""Write the tables of README and docs/ from the JSON in benchmarks/results/: `make tables`.

    python -m benchmarks.tables [--check]

A table stands between `<!-- table: NAME WORDS -->` and `<!-- end -->`. NAME is a key of `TABLES`;
the words are passed to its function. `--check` writes nothing and fails if a page differs from its
JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.helpers import page_tables as pages
from benchmarks.helpers import suite_tables as suites
from benchmarks.helpers.command_line import RESULTS
from benchmarks.helpers.text import fenced
from marl_framework.command_line import BAD_INPUT, Parser
from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file

ROOT = RESULTS.parents[1]
MARKED = re.compile(r"(<!-- table: ([^\n]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_HERE = "--amd-epyc-2-cores"  # the machine of the pages
_TRAININGS = "--intel-xeon-2-cores"  # the machine of trainings
_H100, _H200 = "--nvidia-h100", "--nvidia-h200"


@dataclass(frozen=True)
class Table:
    """A table of the pages."""

    files: tuple[str, ...]
    """Names in `benchmarks/results/`, without .json."""
    render: Callable[..., str]
    """Called with the content of each file and the words of the marker."""


def _printed(results: dict[str, Any]) -> str:
    """Return the table that the benchmark of the results prints."""
    suite = results["suite"]
    kind = "learning" if (ROOT / f"benchmarks/learning/{suite}.py").exists() else "speed"
    return fenced(import_module(f"benchmarks.{kind}.{suite}").table(results))


_PRINTED = {
    **{
        name: f"{name}{_HERE}"
        for name in (
            *("ablation", "predicted", "stages", "algorithms", "no_fly"),
            *("sample_reuse", "adaptive", "search_settings", "coma_navigation"),
            *("ranks", "utilisation", "network_types", "planners", "pilot"),
            *("cameras", "doubt", "fields", "fields-larger", "fields-lakes"),
        )
    },
    **{
        name: f"{name}{_TRAININGS}"
        for name in (
            *("time_to_paper", "areas", "busy_machine", "side_by_side", "machine_code"),
            *("algorithms-all", "sample_reuse-sac", "sample_reuse-coma", "ablation-precision"),
        )
    },
    "ablation-8_uavs": f"ablation-8_uavs{_HERE}",
}
"""Files of the tables that benchmarks print."""
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
_TEAMS = ("suite_student_teams", "suite_search_teams")
_COMPLETED = ("suite_completed", "suite_completed_map")
_ROUGH = tuple(
    f"suite_rough_{team}{ground}"
    for ground in ("", "_thermal")
    for team in ("student", "earlier_student")
)
_BUDGET = (f"kernel_budget{_TRAININGS}",)
TABLES = {
    **{name: Table((file,), _printed) for name, file in _PRINTED.items()},
    "transformations": Table((f"transformations{_HERE}",), pages.transformations),
    "gpu_transformations": Table((f"transformations{_H200}",), pages.transformations),
    "gpu_planners": Table(
        tuple(f"planners-{way}{_H200}" for way in ("eager", "graphs")), pages.gpu_planners
    ),
    "gpu_utilisation": Table((f"utilisation{_H200}",), _printed),
    "rollout": Table((f"rollout{_HERE}",), pages.rollout),
    **{
        name: Table(
            tuple(
                f"training-{params}-{precision}{machine}"
                for params in ("params", "fast", "balanced")
                for precision in ("float32", "bfloat16")
            ),
            pages.training,
        )
        for name, machine in (("training", _TRAININGS), ("training-amd", _HERE))
    },
    "metrics": Table((), pages.metrics),
    "whole_maps": Table(
        tuple(f"whole_map-{flight}{_HERE}" for flight in ("0755", "1121")), pages.whole_maps
    ),
    "sgptools": Table(
        tuple(f"sgptools{terrain}{_TRAININGS}" for terrain in ("", "-random_field", "-elevation")),
        pages.evaluated,
    ),
    "scaling": Table((f"scaling{_HERE}",), pages.scaling),
    "wrappers": Table((f"wrappers{_TRAININGS}",), pages.wrappers),
    "kernel_budget": Table(_BUDGET, pages.kernel_budget),
    "gpu_bounds": Table(_BUDGET, pages.gpu_bounds),
    "gpu_training": Table(
        tuple(
            f"training-{name}-{way}"
            for name in ("gpu", "paper", "128x5")
            for way in (f"eager{_H100}", f"graphs{_H100}", f"graphs{_H200}")
        ),
        pages.gpu_training,
    ),
    "gpu_rollout": Table(
        tuple(f"rollout-{way}{_H200}" for way in ("eager", "graphs")), pages.gpu_rollout
    ),
    "prediction_budget": Table(_BUDGET, pages.prediction_budget),
    "gpu_memory": Table(_BUDGET, pages.gpu_memory),
    "published": Table(
        (f"published_simulator-balanced{_HERE}", f"published_simulator{_HERE}"), pages.published
    ),
    "published_mixed": Table((f"published_simulator-mixed{_HERE}",), pages.published_mixed),
    "published_student": Table(
        tuple(
            f"published_simulator-student-{terrain}-{starts}{_HERE}"
            for terrain in ("split", "mixed")
            for starts in ("published", "corners")
        ),
        pages.published_student,
    ),
    "suite": Table(_SUITE, suites.suite),
    "suite_short": Table(_SUITE, suites.suite_short),
    "suite_teams": Table(_SUITE, suites.suite_teams),
    "suite_students": Table(_SUITE, suites.students),
    "teams": Table(_TEAMS, suites.teams),
    "team_counts": Table(_TEAMS[:1], suites.team_counts),
    "workers": Table((*_TEAMS, f"stages{_HERE}", *_WORKERS), suites.workers),
    "rough": Table(("suite_rough",), suites.rough),
    "rough_completed": Table(("suite_rough",), suites.rough_completed),
    "completed": Table(("suite_completed",), suites.completed),
    "completed_planners": Table(_COMPLETED, suites.completed_planners),
    "completed_verdicts": Table(_COMPLETED, suites.completed_verdicts),
    "completed_days": Table(_ROUGH, suites.completed_days),
    "rough_teams": Table(_ROUGH, suites.rough_teams),
    "rough_search": Table(_ROUGH, suites.rough_search),
    "fresh": Table(_COMPLETED[:1], suites.fresh),
    "earlier_student": Table(("suite_student", "suite_earlier_student"), suites.earlier_student),
}


def page_files() -> list[Path]:
    """Return README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def table(marker: str, folder: Path = RESULTS) -> str:
    """Return the table of a marker, from the JSON in `folder`.

    Raises:
        ConfigError: the table is unknown, or its JSON is missing or incomplete.
    """
    name, *words = marker.split()
    if name not in TABLES:
        raise ConfigError(f"table: {marker}: choose from {', '.join(TABLES)}")
    files = [folder / f"{file}.json" for file in TABLES[name].files]
    try:
        results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        return TABLES[name].render(*results, *words)
    except OSError as error:
        raise ConfigError(f"table: {marker}: {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"table: {marker}: {files[0].name} lacks {error}") from error


def written(text: str, folder: Path = RESULTS) -> str:
    """Return a page with its tables rewritten from the JSON in `folder`."""
    return MARKED.sub(lambda at: f"{at[1]}\n{table(at[2], folder)}\n\n{at[3]}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check all tables; return 0, 1 if a page differs, 2 for bad input."""
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
