"""Every figure of README and docs/ has a source, and the source has that value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import figures_of_pages
from benchmarks.figures_of_pages import Known, figures, is_shown, origins, value

PAGE = """Trains 123 transitions/s, or `7 ms` in code, [a link](x/9_MB).

```
5 %
```

It reaches 0.221 ± 0.050 and 0.22 / 0.85 on 103 × 103 cells; seed 20001, 50 missions.

<!-- table: rollout -->

| 1 | 576 MB |

<!-- end -->
−0.060 bit less, and 16-bit numbers.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"n": 1, "own": True, "bytes": 1.5e6}, {"n": 2, "own": False, "bytes": 3e6}]
    content = {"speed": 122.7, "rows": rows, "deep": {"spread": 0.0496, "mean": 0.2213}}
    (tmp_path / "a.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


def test_all_figures_of_the_pages_have_a_source_or_a_reason(capsys) -> None:
    assert figures_of_pages.main([]) == 0
    printed, said = capsys.readouterr()
    source = "2.2 MB: scaling--amd-epyc-2-cores must_do.bytes"
    assert source in printed
    assert said == ""
    found = figures_of_pages.all_figures()
    assert len({figure.page for figure in found}) > 5
    assert len(printed.splitlines()) == len(found) + 1


def test_figures_are_numbers_with_a_unit_or_a_spread_outside_of_code() -> None:
    found = [(figure.line, figure.text, figure.table) for figure in figures("p", PAGE)]
    assert found == [
        (1, "123 transitions/s", None),
        (7, "0.221 ± 0.050", None),
        (7, "0.22 / 0.85", None),
        (11, "576 MB", "rollout"),
        (14, "−0.060 bit", None),
    ]


def test_a_source_must_have_the_value(folder: Path) -> None:
    speed, spread, *_ = figures("p", PAGE)
    megabytes, share = figures("p", "3 MB or 50 %")
    shown = [
        (speed, ["a speed"]),
        (spread, ["a deep.mean", "a deep.spread"]),
        (megabytes, ["a rows[n=2,own=false].bytes"]),
        (megabytes, ["a rows[1].bytes"]),
        (share, ["a rows[0].bytes / a rows[1].bytes"]),
    ]
    assert all(is_shown(figure, sources, folder) for figure, sources in shown)
    assert not is_shown(speed, ["a rows[n=1].bytes"], folder)
    assert not is_shown(spread, ["a deep.mean"], folder)


@pytest.mark.parametrize("wrong", ["b speed", "a fast", "a rows[n=3].bytes", "a rows[7].bytes"])
def test_a_missing_source_is_named(wrong: str, folder: Path) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        value(wrong, folder)
    assert wrong in str(caught.value)


def test_an_interval_in_prose_may_be_of_a_table_of_its_page(folder: Path) -> None:
    table = "<!-- table: rollout -->\n\n| 0.76 [0.59, 0.91] |\n\n<!-- end -->\n"
    page = f"It gains 0.76 [0.59,\n0.91], then −0.5 [−0.6, −0.4].\n\n{table}"
    found = [*figures("p", page), *figures("q", "0.76 [0.59, 0.91]")]
    named, problems = origins(found, Known({}, {}), folder)
    assert [figure.line for figure, _ in named] == [1, 6]
    places = [problem.split(": ")[:2] for problem in problems]
    assert places == [["p:2", "−0.5 [−0.6, −0.4]"], ["q:1", "0.76 [0.59, 0.91]"]]


def test_figures_with_neither_source_nor_reason_are_problems(folder: Path) -> None:
    found = list(figures("p", PAGE))
    sources = {("p", "123 transitions/s"): ["a rows[0].n"], ("p", "0.22 / 0.85"): ["a speed"] * 2}
    reasons = {("any page", "−0.060 bit"): "because", ("p", "9 m"): "gone"}
    named, problems = origins(found, Known(sources, reasons), folder)
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["p:1", "123 transitions/s"],
        ["p:7", "0.221 ± 0.050"],
        ["p:7", "0.22 / 0.85"],
        ["figures_of_pages.yaml", "p has no 9 m"],
    ]
    assert "1.0" in problems[0]
    wanted = ("a rows[0].n", "a speed and a speed", "rollout--amd-epyc-2-cores", "because")
    assert all(part in where for part, (_, where) in zip(wanted, named, strict=True))
