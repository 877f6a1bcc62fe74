"""Tables of README and docs/ are those of the benchmarks' JSON."""

from __future__ import annotations

import json
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.helpers.command_line import RESULTS
from marl_framework.config.errors import ConfigError
from marl_framework.evaluation import suite_results, worlds

TRAINING = "training-params-float32--intel-xeon-2-cores.json"
BESIDE_FILES = {
    *(f"training-{name}--nvidia-h100" for name in ("gpu-eager", "paper-eager", "128x5-eager")),
    *(f"training-{name}-graphs--nvidia-h200" for name in ("gpu", "paper", "128x5")),
    *(
        f"{name}--nvidia-h200"
        for name in (
            *("rollout-eager", "rollout-graphs", "layers", "transformations", "utilisation"),
            *("planners-eager", "planners-graphs"),
        )
    ),
    *(
        f"published_simulator-student-{terrain}-{starts}--intel-xeon-2-cores"
        for terrain in ("split", "mixed")
        for starts in ("published", "corners")
    ),
}
"""Results of committed code in a folder that also had packages, or the runs that flew."""
Tree = dict[str, Any]


@pytest.mark.parametrize("page", tables.page_files(), ids=lambda page: page.name)
def test_a_page_has_the_tables_of_its_json(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tables.written(text) == text, "run `make tables`"
    assert len(tables.MARKED.findall(text)) == text.count("<!-- table:")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_published_result_is_of_committed_code(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    machine = found["machine"]
    assert len(machine["commit"]) == 40
    if machine["uncommitted_changes"] is None:
        assert "without .git" in found["note"]
    elif path.stem not in BESIDE_FILES:
        assert not machine["uncommitted_changes"], "commit first, then measure"


def test_another_result_gives_another_page(tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n\n<!-- table: training -->\nold\n<!-- end -->\n\nb\n", encoding="utf-8")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "page_files", lambda: [page])
    assert tables.main(["--check"]) == 1
    assert "old" in page.read_text(encoding="utf-8")
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0
    assert capsys.readouterr().out.count("page.md") == 2
    shutil.copytree(RESULTS, tmp_path / "results")
    file = tmp_path / "results" / TRAINING
    found = json.loads(file.read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    assert f"| `params.yaml` | float32 | {found['agent_transitions_per_s']:.0f} |" in text
    assert text.startswith("a\n\n<!-- table: training -->\n\n| params file |")
    assert text.endswith("% |\n\n<!-- end -->\n\nb\n")
    found["agent_transitions_per_s"] = 1234.5
    file.write_text(json.dumps(found), encoding="utf-8")
    assert "| `params.yaml` | float32 | 1,234 |" in tables.written(text, tmp_path / "results")


@pytest.mark.parametrize(
    ("marker", "named"), [("tides", "tides"), ("training", TRAINING), ("rollout", "'rows'")]
)
def test_a_table_that_cannot_be_made_is_named(marker: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "rollout--amd-epyc-2-cores.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(named)):
        tables.table(marker, tmp_path)


# The suite --------------------------------------------------------------------------------


def table(folder: Path, marker: str, **files: Tree) -> list[str]:
    """Return the lines of a table whose JSON files have these contents."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return tables.table(marker, folder).splitlines()


def finals(entropy: float, f1: float, seeds: int = 1) -> Tree:
    return {"roi_entropy": [[entropy] * 2] * seeds, "f1": [[f1] * 2] * seeds}


@pytest.fixture
def suite() -> Tree:
    """Results in which the team wins in entropy and loses in F1, everywhere."""
    flown = {
        "learned": {"roi_entropy": [[0.2, 0.22], [0.21, 0.23]], "f1": [[0.7, 0.71], [0.7, 0.72]]},
        "information_gain": {"roi_entropy": [[0.4, 0.43]], "f1": [[0.9, 0.88]]},
    }
    summary = suite_results.summary(flown, None)
    ours = summary["learned"]
    ours["roi_entropy"]["difference"] |= {"interval": (-0.3, -0.1), "verdict": "better"}
    ours["f1"]["difference"] |= {"interval": (-0.3, 0.01), "verdict": "undecided"}
    return {"worlds": {world.name: {"summary": summary} for world in worlds.WORLDS}}


def test_the_suite_shows_losses_and_wins(suite: Tree, tmp_path: Path) -> None:
    mixed = {"worlds": {name: suite["worlds"][name] for name in ("split", "mixed")}}
    searched = {"summary": {"search": suite["worlds"]["split"]["summary"]["learned"]}}
    search = {"worlds": {"mixed": searched}}
    files = {"suite_mixed": mixed, "suite_student": suite, "suite_search": search}
    lines = table(tmp_path, "suite split mixed", suite=suite, **files)
    assert len(lines) == 2 + 4 + 5
    assert lines[2].startswith("| `split` | `params_balanced.yaml` | 0.215 [")
    assert "| **−0.200 [−0.300, −0.100]** better |" in lines[2]
    assert lines[2].endswith("| −0.183 [−0.300, +0.010] |")
    assert lines[5].startswith("| | information gain | 0.415 [")
    assert lines[7].startswith("| | … fine-tuned on `mixed` | 0.215 [")
    assert lines[8].startswith("| | `params_student.yaml` | 0.215 [")
    assert lines[9].startswith("| | `search` on a predicted map | 0.215 [")
    assert len(table(tmp_path, "suite")) == 5 + 3 * len(worlds.WORLDS)
    grid = table(tmp_path, "suite_teams")
    same = "0.215 / 0.708"
    assert grid[2] == f"| 2 UAVs, `params_balanced.yaml` | {same} | {same} | {same} |"
    assert grid[6].startswith(f"| 4 UAVs, … fine-tuned on `mixed` | – | {same} | – |")
    assert len(grid) == 2 + 3 * 3 + 1


def test_suites_with_and_without_worst_tenths_give_the_same_tables(
    suite: Tree, tmp_path: Path
) -> None:
    earlier = json.loads(json.dumps(suite))
    for world in earlier["worlds"].values():
        for metrics in world["summary"].values():
            for row in metrics.values():
                del row["worst_tenth"]
    names = ("suite", "suite_mixed", "suite_student", "suite_search")
    shown = [
        table(tmp_path, "suite split", **dict.fromkeys(names, found)) for found in (suite, earlier)
    ]
    assert shown[0] == shown[1]


def test_the_short_suite_leaves_out_coverage_and_random_flight(suite: Tree, tmp_path) -> None:
    for world in suite["worlds"].values():
        world["summary"] |= dict.fromkeys(("coverage", "random"), world["summary"]["learned"])
    files = dict.fromkeys(("suite", "suite_mixed", "suite_student", "suite_search"), suite)
    whole, short = (table(tmp_path, f"{name} split", **files) for name in ("suite", "suite_short"))
    assert len(whole) == len(short) + 2
    assert short == [line for line in whole if not re.match(r"\| \| (coverage|random) ", line)]


def test_students_are_paired_with_others_seed_by_seed(tmp_path: Path) -> None:
    def flown(policy: str, entropy: list[list[float]], *names: str) -> Tree:
        made = {policy: {"roi_entropy": entropy, "f1": [[0.8, 0.7], [0.8, 0.9]]}}
        return {"worlds": {name: {"blocks": None, "finals": made} for name in names}}

    files = {
        "suite": flown("learned", [[0.5, 0.4], [0.5, 0.4]], "split", "mixed"),
        "suite_mixed": flown("learned", [[0.2, 0.1], [0.4, 0.3]], "mixed"),
        "suite_student": flown("learned", [[0.3, 0.2], [0.5, 0.4]], "split", "mixed"),
        "suite_search": flown("search", [[0.1, 0.1], [0.1, 0.1]], "mixed"),
    }
    lines = table(tmp_path, "suite_students mixed split", **files)[2:]
    same = "+0.000 [+0.000, +0.000]"
    assert lines[0].startswith("| `mixed` | `params_balanced.yaml` | −0.100 [")
    assert lines[1] == f"| | … fine-tuned on `mixed` | **+0.100 [+0.100, +0.100]** worse | {same} |"
    assert lines[2].startswith("| | `search` on a predicted map | +0.250 [")
    assert lines[3].startswith("| `split` | `params_balanced.yaml` | −0.100 [")
    assert len(lines) == 4
    counts = [line.split(" | ") for line in table(tmp_path, "suite_students")[2:]]
    assert [row[1] for row in counts] == ["2", "1", "1"]
    level = "0 better, 0 worse, 1 undecided |"
    assert counts[1][2:] == ["0 better, 1 worse, 0 undecided", level]


def test_teams_are_bold_if_they_are_better_in_both(suite: Tree, tmp_path: Path) -> None:
    summary = suite["worlds"]["split"]["summary"]
    better = json.loads(json.dumps(summary))
    better["learned"]["f1"]["difference"]["verdict"] = "better"
    found = {
        f"split_{uavs}_uavs_radio_{radio}": {"summary": better if uavs == 8 else summary}
        for uavs, radio in product((2, 4, 8, 12), ("0", "25", "inf"))
    }
    lines = table(tmp_path, "teams split", suite_student_teams={"worlds": found})
    plain = "0.215 / 0.708"
    assert lines[0] == "| | 2 UAVs | 4 UAVs | 8 UAVs | 12 UAVs |"
    assert lines[2] == f"| no radio, learned | {plain} | {plain} | **{plain}** | {plain} |"
    assert len(lines) == 2 + 3 * 2
    assert "**" not in lines[3]


def test_students_are_compared_with_the_worker_of_each_world(tmp_path: Path) -> None:
    def world(entropy: float, f1: float) -> Tree:
        flown = {"learned": finals(entropy, f1, 3), "search": finals(0.1, 0.8, 3)}
        means = {name: {"mean": values[0][0]} for name, values in flown["learned"].items()}
        return {"blocks": None, "finals": flown, "summary": {"learned": means}}

    student, stages, *workers = tables.TABLES["workers"].files
    names = [f"w{k}" for k in range(len(workers))] + ["split_8_uavs_radio_25"]
    flown = {student: {name: world(0.2 + 0.1 * k, 0.9) for k, name in enumerate(names)}}
    flown |= {file: {name: world(0.3, 0.7)} for file, name in zip(workers, names, strict=False)}
    contents: Tree = {file: {"worlds": found} for file, found in flown.items()}
    made = {"variant": "worker", "task": "large_team"}
    made["finals"] = {"roi_entropy": [0.05] * 2, "f1": [0.5] * 2}
    others = [{**made, "variant": "student"}, {**made, "task": "split"}]
    contents[stages] = {"runs": [*others, *[made] * 3]}
    first, second, *_, last = table(tmp_path, "workers", **contents)[2:]
    more = "**+0.200 [+0.200, +0.200]** better"
    less = "**−0.100 [−0.100, −0.100]** better"
    searched = "**+0.200 [+0.200, +0.200]** worse"
    assert first == f"| `w0` | 0.300 / 0.700 | 0.200 / 0.900 | {less} | {more} | {searched} |"
    same = "+0.000 [+0.000, +0.000]"
    assert second == f"| `w1` | 0.300 / 0.700 | 0.300 / 0.900 | {same} | {more} | {searched} |"
    assert last.startswith("| `split_8_uavs_radio_25` | 0.050 / 0.500 | 0.900 / 0.900 | ")
    assert last.endswith(" | **−0.050 [−0.050, −0.050]** better |")
