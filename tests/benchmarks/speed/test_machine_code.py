"""The table of the resources that kernels need."""

from __future__ import annotations

import pytest
import torch

from benchmarks.helpers import kernel_launches
from benchmarks.helpers.machine_code import ARCHITECTURES, Launch, MachineCode, type_of
from benchmarks.speed import machine_code
from tests.benchmarks.running import run


@pytest.mark.usefixtures("quick")
def test_rows_of_every_kernel_and_architecture(tmp_path, monkeypatch, capsys):
    pytest.importorskip("triton")

    def code(launch: Launch, architecture: int) -> MachineCode:
        return MachineCode(architecture, 8 if launch.name == "fuse" else 0, 1024, frozenset())

    monkeypatch.setattr(machine_code, "compile_for", code)
    rows = run(machine_code, tmp_path)["rows"]
    kernels = {row["kernel"].split()[0] for row in rows}
    assert {"read", "fuse", "draw_actor", "choose", "take"} <= kernels
    assert {row["stage"] for row in rows} == set(kernel_launches.STAGES)
    assert all(row["registers"] == row["architecture"] for row in rows)
    for start in range(0, len(rows), len(ARCHITECTURES)):
        group = rows[start : start + len(ARCHITECTURES)]
        assert [row["architecture"] for row in group] == list(ARCHITECTURES)
        assert len({(row["stage"], row["kernel"]) for row in group}) == 1
    assert {row["kernel"].split()[0] for row in rows if row["spilled_bytes"]} == {"fuse"}
    assert "1.0 KiB" in capsys.readouterr().out


def test_arguments_have_tritons_types():
    given = (torch.zeros(1, dtype=torch.float16), torch.zeros(1), 3, 0.5)
    assert [type_of(value) for value in given] == ["*fp16", "*fp32", "i32", "fp32"]
