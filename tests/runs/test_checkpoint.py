from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from marl_framework.config.errors import ConfigError
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.runs.files import atomic_file


def trained() -> tuple[nn.Linear, torch.optim.Adam]:
    """Return a module and an optimiser that have made a step."""
    module = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    module(torch.ones(4, 3)).square().sum().backward()
    optimizer.step()
    return module, optimizer


def payload(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "actor": module.state_dict(),
        "actor_optimizer": optimizer.state_dict(),
        "generator": torch.Generator().manual_seed(5).get_state(),
        "config": {"networks": {"lambda": 0.8, "device": "auto"}, "kinds": ["split"], "path": None},
        "training_step": 7,
        "best_entropy": float("inf"),
    }


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_a_round_trip_restores_networks_optimisers_generators_and_numbers(tmp_path: Path) -> None:
    module, optimizer = trained()
    saved = payload(module, optimizer)
    save_checkpoint(tmp_path / "last.pt", saved)
    loaded = load_checkpoint(tmp_path / "last.pt")

    assert loaded["format"] == 1
    assert set(loaded) == {*saved, "format"}
    assert loaded["config"] == saved["config"]
    assert (loaded["training_step"], loaded["best_entropy"]) == (7, float("inf"))
    copy, copied_optimizer = trained()
    copy.load_state_dict(loaded["actor"])
    copied_optimizer.load_state_dict(loaded["actor_optimizer"])
    for network, own in ((module, optimizer), (copy, copied_optimizer)):
        own.zero_grad()
        network(torch.arange(3.0)).sum().backward()
        own.step()
    assert torch.equal(copy.weight, module.weight)
    restored = torch.Generator()
    restored.set_state(loaded["generator"])
    expected = torch.rand(9, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.rand(9, generator=restored), expected)


def test_a_checkpoint_loads_on_the_device_asked_for(tmp_path: Path, device: torch.device) -> None:
    save_checkpoint(tmp_path / "last.pt", {"weight": torch.arange(3.0, device=device)})
    loaded = load_checkpoint(tmp_path / "last.pt", device)
    assert loaded["weight"].device.type == device.type
    assert loaded["weight"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["save", "fsync", "replace"])
def test_a_failure_while_writing_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, failure: BaseException
) -> None:
    save_checkpoint(tmp_path / "last.pt", {"training_step": 1})
    before = (tmp_path / "last.pt").read_bytes()

    def fail(*arguments: Any) -> None:
        if where == "save":
            arguments[1].write(b"half of it")
        raise failure

    monkeypatch.setattr(torch if where == "save" else os, where, fail)
    with pytest.raises(type(failure)):
        save_checkpoint(tmp_path / "last.pt", {"training_step": 2})
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["last.pt"]
    assert (tmp_path / "last.pt").read_bytes() == before
    save_checkpoint(tmp_path / "last.pt", {"training_step": 2})
    assert load_checkpoint(tmp_path / "last.pt")["training_step"] == 2
    assert os.listdir(tmp_path) == ["last.pt"]


def test_the_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch) -> None:
    calls: list[str] = []

    def noting(name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def call(*arguments: Any) -> None:
            calls.append(name)
            real(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noting(name))
    with atomic_file(tmp_path / "a") as file:
        file.write(b"x")
        assert not (tmp_path / "a").exists()
    assert calls[:2] == ["fsync", "replace"]
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.float64(1.0), r"payload\['a'\]\['b'\]\[0\] is a float64"),
        (Path("x"), r"payload\['a'\]\['b'\]\[0\] is a PosixPath"),
        ({1.5: {2, 3}}, r"\[0\]\[1.5\] is a set"),
        ({np.int64(1): 1}, "a key of .* is a int64"),
    ],
)
def test_what_could_not_be_loaded_is_refused_when_saving(tmp_path, value: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        save_checkpoint(tmp_path / "last.pt", {"a": {"b": [value]}})
    assert os.listdir(tmp_path) == []


def test_all_plain_values_come_back(tmp_path: Path) -> None:
    plain: dict[Any, Any] = {
        "none": None,
        "numbers": [True, -(2**70), 1.5, float("-inf")],
        "text": "λ",
        "bytes": b"\x00\xff",
        "nested": OrderedDict(a=(1, [2, {"b": ()}])),
        3: "a number as key",
    }
    save_checkpoint(tmp_path / "a.pt", plain)
    assert load_checkpoint(tmp_path / "a.pt") == {**plain, "format": 1}


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert message.startswith(f"checkpoint {path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_a_file_that_would_run_code_is_refused_and_not_run(tmp_path: Path, kind: str) -> None:
    trap = tmp_path / "trap"
    path = tmp_path / "evil.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Evil(trap)))
    else:
        content = {**payload(*trained()), "format": 1, "extra": Evil(trap)}
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    assert "could run code" in refusal(path)
    assert not trap.exists()
    if kind != "pickle":  # loading it carelessly would have sprung the trap
        torch.load(path, weights_only=False)["extra"].close()
        assert trap.exists()


def test_a_missing_end_and_any_flipped_bit_are_found(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, payload(*trained()))
    whole = path.read_bytes()
    for length in [*range(0, len(whole), len(whole) // 25), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refusal(path)
    for place in [*range(0, len(whole) - 100, 97), *range(len(whole) - 100, len(whole))]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        refusal(path)


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    torch.save({**payload(*trained()), "format": 1}, tmp_path / "a.pt")
    assert "the checksum is missing" in refusal(tmp_path / "a.pt")


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"PK\x03\x04" + bytes(200), bytes(1000), b"\x80\x02}."]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.pt"
    path.write_bytes(content)
    refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "missing.pt")
    assert "cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"actor": 1}, "the key format is missing"),
        ([1, 2], "the key format is missing"),
        (torch.ones(3), "the key format is missing"),
        ({"format": 2}, "the format is 2; this version reads format 1"),
        ({"format": "1"}, "the format is '1'"),
        ({"format": True}, "the format is True"),
        ({"format": torch.ones(2)}, "the format is tensor"),
    ],
)
def test_another_format_is_refused(tmp_path: Path, content: Any, reason: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    assert reason in refusal(tmp_path / "a.pt")


def test_a_full_memory_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    save_checkpoint(tmp_path / "a.pt", {"training_step": 1})
    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_checkpoint(tmp_path / "a.pt")
