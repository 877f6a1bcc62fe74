import json
import os
import shutil
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import torch

from marl_framework import doctor
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.doctor import main

ON_CPU = "compute.device=cpu"
NAMES = ["versions", "CPU", "GPUs", "configuration"]
NAMES += ["window kernels", "networks", "mixed precision", "memory", "disk", "runs"]


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]):
    """Run the doctor on params_test.yaml; returns exit code and findings by name."""

    def run(*settings: str) -> tuple[int, dict[str, dict[str, Any]]]:
        sets = [part for text in settings for part in ("--set", text)]
        code = main(["--config", "params_test.yaml", "--json", "--set", ON_CPU, *sets])
        printed = json.loads(capsys.readouterr().out)
        assert printed["ready"] is (code == 0)
        return code, {check["name"]: check for check in printed["checks"]}

    return run


def test_all_is_well_here_and_nothing_is_left(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--config", "params_test.yaml", "--set", ON_CPU]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *(f"✓ {name}" for name in NAMES),
        "a training run can start",
    ]
    assert torch.__version__.split("+")[0] in lines[0]
    assert os.listdir(tmp_path) == []


def test_too_little_memory_is_told_with_a_value(examine, monkeypatch) -> None:
    memory = "marl_framework.training.memory.device_memory"
    monkeypatch.setattr(memory, lambda device: (2**20, 2**20))
    code, found = examine("environment.num_envs=4096")
    assert code == 1
    assert not found["memory"]["ok"]
    assert "--set environment.num_envs=" in found["memory"]["fix"]
    assert all(check["ok"] for name, check in found.items() if name != "memory")


@pytest.mark.parametrize("problem", ["full", "file"])
def test_a_disk_that_is_full_or_no_folder_is_told(examine, tmp_path, monkeypatch, problem) -> None:
    (tmp_path / "file").write_text("")
    if problem == "full":
        full = type("Usage", (), {"free": 10})
        monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    place = tmp_path / ("file" if problem == "file" else "runs")
    code, found = examine(f"logging.directory={place}")
    assert code == 1
    assert not found["disk"]["ok"]
    assert "logging.directory" in found["disk"]["fix"]


def test_bad_input_is_told_by_file_or_key(refused) -> None:
    assert "missing.yaml" in refused(main, ["--config", "missing.yaml"])
    arguments = ["--config", "params_test.yaml", "--json", "--set", "networks.gama=1"]
    assert "learning.gamma" in refused(main, arguments)


def test_a_device_that_is_missing_is_a_finding(examine) -> None:
    code, found = examine("compute.device=cuda:99")
    assert code == 1
    assert list(found) == NAMES[:4]
    assert "compute.device" in found["configuration"]["found"]


def test_another_algorithm_is_tried(examine) -> None:
    assert examine("experiment.algorithm=mappo")[0] == 0  # with its own default
    code, found = examine("experiment.algorithm=sac", "logging.save_replay=true")
    assert code == 0
    assert "replay" in found["memory"]["found"]
    code, found = examine("experiment.algorithm=mappo", "learning.clip_ratio=0")
    assert code == 1
    assert "learning.clip_ratio" in found["networks"]["found"]


def test_an_algorithm_need_not_count_skipped_updates(examine, monkeypatch) -> None:
    update = COMAWrapper.update

    def without(*given: Any, **named: Any) -> dict[str, Any]:
        found = update(*given, **named)
        del found["skipped_updates"]
        return found

    monkeypatch.setattr(COMAWrapper, "update", without)
    assert examine()[0] == 0


def test_a_package_that_is_missing_or_old_is_named(examine, monkeypatch) -> None:
    def version(package: str) -> str:
        if package == "kornia":
            raise PackageNotFoundError
        return "2.9.1+cpu"

    monkeypatch.setattr(doctor, "version", version)
    code, found = examine()
    assert code == 1
    assert list(found) == ["versions"]
    assert {name for name in doctor.MINIMUM if name in found["versions"]["fix"]} == {
        *("torch", "kornia", "pyyaml", "tensorboard")
    }


def test_networks_that_fail_are_a_finding(examine, monkeypatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("cuDNN error:\nCUDNN_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(COMAWrapper, "update", fail)
    code, found = examine()
    assert code == 1
    assert found["networks"]["found"].startswith("RuntimeError: ")
    assert found["networks"]["found"].isprintable()
    assert found["networks"]["fix"]


def test_a_precision_that_is_off_is_a_finding(examine, monkeypatch) -> None:
    act = COMAWrapper.act
    monkeypatch.setattr(COMAWrapper, "act", lambda coma, maps: act(coma, maps) * 2)
    code, found = examine()
    assert code == 1
    assert not found["mixed precision"]["ok"]
    assert "compute.precision=float32" in found["mixed precision"]["fix"]
