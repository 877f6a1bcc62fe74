"""Tables of README and docs/ are those of the benchmarks' JSON."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.helpers.command_line import RESULTS
from marl_framework.config.errors import ConfigError

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
}
"""Results of committed code in a folder that also had packages."""


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
