"""The notebook runs from top to bottom, shows a page, and is stored without outputs."""

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]
MOST_CELLS = 15


@pytest.fixture
def notebook() -> Any:
    return nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)


def test_the_notebook_is_short_and_stored_without_outputs(notebook) -> None:
    nbformat.validate(notebook)
    assert len(notebook.cells) <= MOST_CELLS
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.soak
def test_the_notebook_runs_and_its_policies_fly_the_same_missions(
    notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (training,) = (cell for cell in notebook.cells if "STEPS = " in cell.source)
    training.source = re.sub(r"STEPS = \d+", "STEPS = 2", training.source)  # not a minute
    same = "all((r.truth == records['random'].truth).all() for r in records.values())"
    check = f"print({same}, results['student']['f1'] > results['random']['f1'])"
    notebook.cells.append(nbformat.v4.new_code_cell(check))
    resources = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(notebook, timeout=None, resources=resources).execute()
    shown = [output for cell in done.cells for output in cell.get("outputs", [])]
    pages = [x for x in shown if "<iframe srcdoc" in x.get("data", {}).get("text/html", "")]
    assert len(pages) == 1
    assert shown[-1].text == "True True\n"
    assert (tmp_path / "runs" / "first_steps" / "checkpoints" / "last.pt").is_file()
