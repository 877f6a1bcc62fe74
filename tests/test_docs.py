"""The documentation builds without a warning and leaves no public name out."""

import re
import subprocess
import sys
from pathlib import Path

import marl_framework
from tests.test_architecture import FLOORS

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (site / "reference" / "missions" / "index.html").read_text(encoding="utf-8")
    assert 'id="marl_framework.mission.environment.MissionEnvironment.step"' in page
    assert "Move all UAVs, measure, reward, communicate" in page


def test_the_reference_has_every_public_name_once() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")}
    index = pages.pop("index")
    shown = [
        (stem, name.rpartition(".")[2])
        for stem, text in pages.items()
        for name in re.findall(r"^::: marl_framework\.([\w.]+)$", text, re.MULTILINE)
    ]
    assert sorted(name for _, name in shown) == sorted(
        name for name in marl_framework.__all__ if name != "__version__"
    )
    for stem, name in shown:
        (row,) = [line for line in index.splitlines() if f"]({stem}.md)" in line]
        assert f"`{name}`" in row


def test_the_architecture_page_names_the_folders_and_files_of_the_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "marl_framework"
    folders = re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)
    assert sorted(folders) == sorted(path.parent.name for path in package.glob("*/__init__.py"))
    assert [name for name in FLOORS if name in folders] == folders
    named = set(re.findall(r"`([\w/.]+(?:/|\.py))`", page)) - {"marl_framework/"}
    assert "algorithms/rollout.py" in named
    assert {name for name in named if not (package / name).exists()} == set()
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'font-weight="bold">(\w+)</text>', drawing)
    undrawn = {"kernels", "integrations", "prediction", "distillation", "exporting", "deployment"}
    assert set(folders) - set(drawn) == undrawn
    assert set(drawn) <= set(folders)
