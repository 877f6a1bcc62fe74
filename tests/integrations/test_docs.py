"""The short examples of docs/integrations.md run as they are printed, with a smaller mission."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"


@pytest.mark.parametrize("library", ["TorchRL", "PettingZoo", "Gymnasium"])
def test_the_first_example_of_a_section_runs(library: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {library}\n")[2]
    code = re.search(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert code is not None
    small = code[1].replace("params_fast.yaml", "params_test.yaml")
    exec(compile(small, PAGE.name, "exec"), {})
