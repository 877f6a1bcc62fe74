"""What kernels need of a GPU, and that the table tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.helpers import kernel_launches
from benchmarks.helpers.machine_code import ARCHITECTURES, MachineCode
from benchmarks.speed import machine_code
from tests.benchmarks.running import read_strict

pytestmark = pytest.mark.usefixtures("quick")


def test_rows_of_every_kernel_and_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")

    def code(launch: kernel_launches.Launch, architecture: int) -> MachineCode:
        return MachineCode(architecture, 8 if launch.name == "fuse" else 0, 1024, frozenset())

    monkeypatch.setattr(machine_code, "compile_for", code)
    out = tmp_path / "found.json"
    assert machine_code.main(["--config", "params_test.yaml", "--out", str(out)]) == 0
    rows = read_strict(out)["rows"]
    kernels = {row["kernel"].split()[0] for row in rows}
    assert {"read", "fuse", "draw_actor", "choose", "take", "decide"} <= kernels
    assert {row["stage"] for row in rows} == set(kernel_launches.STAGES)
    assert all(row["registers"] == row["architecture"] for row in rows)
    for start in range(0, len(rows), len(ARCHITECTURES)):
        group = rows[start : start + len(ARCHITECTURES)]
        assert [row["architecture"] for row in group] == list(ARCHITECTURES)
        assert len({(row["stage"], row["kernel"]) for row in group}) == 1
    spilled = {row["kernel"].split()[0] for row in rows if row["spilled_bytes"]}
    assert spilled == {"fuse"}
    text = capsys.readouterr().out
    assert "1.0 KiB" in text
    assert "8 B" in text
