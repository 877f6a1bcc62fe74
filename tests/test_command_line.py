"""What all command lines share."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework import calibrate, doctor, evaluate, export, history, main
from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.command_line import BAD_INPUT, as_program, plain_warnings
from marl_framework.config.loading import ConfigWarning, config_to_dict, load_config
from marl_framework.config.yaml_text import format_yaml
from marl_framework.runs.checkpoint import save_checkpoint

ROOT = Path(__file__).parents[1]
ON_CPU = "compute.device=cpu"


def test_a_reader_that_stops_early_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "marl_framework.main", "--print-config"]
    buffered = {n: value for n, value in os.environ.items() if n != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [*command, "--config", "params_test.yaml", "--set", ON_CPU],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=buffered,  # some text is still to be written when Python ends
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_history_does_not_call_a_closed_pipe_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    (tmp_path / "runs" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        history.main(["show", "a"])


@pytest.mark.parametrize("module", [main, evaluate, calibrate, export, doctor, history])
def test_an_unknown_option_is_one_line(module, refused) -> None:
    refused(module.main, ["--no-such-option"])


Main = Callable[[Sequence[str]], int]


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run folder whose configuration is of an earlier version."""
    config = load_config("params_test.yaml", [ON_CPU])
    tree: dict[str, Any] = config_to_dict(config)
    tree["networks"]["gamma"] = tree["learning"].pop("gamma")
    team = COMAWrapper(config, config.network_sizes, torch.device("cpu"))
    run = tmp_path / "runs" / "old"
    (run / "checkpoints").mkdir(parents=True)
    save_checkpoint(run / "checkpoints" / "best.pt", {**team.state_dict(), "config": tree})
    (run / "config.yaml").write_text(format_yaml(tree))
    return run


FORMER = ("--set", "networks.gamma=0.9")
FLY = ("--policies", "learned,random", "--missions", "1", "--no-figures", "--out", "{base}/out")
FLY_MAP = ("--set", "experiment.missions.mission_mode=deployment", "--check")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (main.main, ("--check", "--config", "params_test.yaml", "--set", ON_CPU, *FORMER)),
        (main.main, ("--print-config", "--checkpoint", "{run}", *FLY_MAP, *FORMER)),
        (doctor.main, ("--config", "params_test.yaml", "--set", ON_CPU, *FORMER)),
        (evaluate.main, ("--checkpoint", "{run}", "--agents", "1,2", *FLY, *FORMER)),
        (evaluate.main, ("--checkpoint", "{run}", "--config", "{run}/config.yaml", *FLY)),
        (export.main, ("--checkpoint", "{run}", "--format", "torch", "--out", "{base}/a.pt2")),
    ],
)
def test_former_keys_are_plain_lines_and_each_is_named_once(
    command, arguments, old_run, tmp_path, capsys
) -> None:
    assert command([text.format(run=old_run, base=tmp_path) for text in arguments]) == 0
    said = capsys.readouterr().err
    assert said
    for line in said.splitlines():
        assert line.startswith("warning: ")
        assert "networks.gamma is now learning.gamma" in line
    for source in ("override ", "configuration in ", "config.yaml: "):
        assert said.count(source) <= 1


def test_other_warnings_stay_warnings_and_other_ranks_are_silent(capsys) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with plain_warnings(shown=False):
            warnings.warn("not for this rank", ConfigWarning, stacklevel=1)
            warnings.warn("of Python", RuntimeWarning, stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["of Python"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["params.yaml", "params_test.yaml", "params_gpu.yaml"])
def test_the_printed_configuration_is_the_one_that_runs(name, tmp_path, capsys) -> None:
    settings = ["learning.gamma=0.5", "experiment.title='yes: #1'", "compute.device=cpu"]
    given = [part for text in settings for part in ("--set", text)]
    assert main.main(["--config", name, *given, "--print-config"]) == 0
    out, err = capsys.readouterr()
    (tmp_path / "printed.yaml").write_text(out)
    assert load_config(tmp_path / "printed.yaml") == load_config(name, settings)
    assert err == ""
    assert main.main(["--config", name, "--set", "learning.gamma=5", "--print-config"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("buffering", [1, -1])
def test_an_evaluation_goes_on_when_nobody_reads(buffering, tmp_path, monkeypatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    given = ["--config", "params_test.yaml", "--policies", "random", "--missions", "1"]
    given += ["--device", "cpu", "--no-figures", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["evaluate", *given])
    with os.fdopen(writer, "w", buffering) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", closed)
        assert evaluate.command() == 0
    assert (tmp_path / "results.json").is_file()


def test_a_command_without_output_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert as_program(lambda: sys.stdout.write("5") + sys.stderr.write("5") - 2) == 0
    sys.stdout.close()
    sys.stderr.close()


def test_another_system_is_one_line() -> None:
    code = "import os, marl_framework; os.name = 'nt'; import marl_framework.command_line"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == BAD_INPUT
    assert done.stderr.count("\n") == 1
    assert "WSL 2" in done.stderr
