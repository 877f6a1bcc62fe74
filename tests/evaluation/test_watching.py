"""Following a training: each newer team once, and the last one, to the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marl_framework import evaluate
from marl_framework.config.errors import ConfigError
from marl_framework.evaluation.watching import latest_teams
from marl_framework.main import main
from marl_framework.runs.files import write_json
from marl_framework.runs.lock import RunLock
from tests.evaluation.test_evaluate import results, write_checkpoint


def checkpoint(run: Path, time: int) -> None:
    """A newer last checkpoint, at some second."""
    path = run / "checkpoints" / "last.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(time))
    os.utime(path, (time, time))


def test_each_newer_team_is_handed_over_once_to_the_end(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    found: list[str] = []

    def no_news() -> None: ...

    def end() -> None:
        checkpoint(tmp_path, 3)
        write_json(tmp_path / "status.json", {"state": "finished"})
        lock.release()

    steps = [
        no_news,
        lambda: checkpoint(tmp_path, 1),
        no_news,
        lambda: checkpoint(tmp_path, 2),
        end,
    ]
    for path in latest_teams(tmp_path, lambda _: steps.pop(0)()):
        found.append(path.read_text())
    assert found == ["1", "2", "3"]
    assert steps == []


def test_a_run_that_has_ended_is_shown_once(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    write_json(tmp_path / "status.json", {"state": "finished"})
    assert len(list(latest_teams(tmp_path))) == 1


def test_a_folder_without_a_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no training is under way"):
        list(latest_teams(tmp_path))


def test_the_command_writes_a_page_into_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoints" / "last.pt", 1, training_step=20)
    write_checkpoint(run / "checkpoints" / "best.pt", 0, training_step=10)
    short = ["--missions", "2", "--no-figures"]
    assert evaluate.main(["--watch", str(run), *short]) == 0
    found = results(run / "watch")
    assert list(found["policies"]) == ["learned"]
    assert found["settings"]["training_step"] == 20
    page = (run / "watch" / "mission.html").read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="20">' in page


def test_a_run_that_is_watched_stays_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["--config", "params_test.yaml", "--device", "cpu", "--run-name", "t"]
    assert main([*train, "--set", "learning.training_steps=2"]) == 0
    short = ["--missions", "2", "--no-figures"]
    assert evaluate.main(["--watch", "runs/t", *short]) == 0
    more = ["--resume", "--allow-changed", "learning.training_steps"]
    assert main([*train, *more]) == 0
    assert evaluate.main(["--watch", "runs/t", *short]) == 0
    assert results(Path("runs/t/watch"))["settings"]["training_step"] == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--watch", "nowhere"], "--watch nowhere: is no run folder"),
        (["--watch", ".", "--checkpoint", "x.pt"], "--checkpoint: "),
        (["--watch", "."], "no training is under way"),
        (["--watch", ".", "--suite", "standard"], "--watch: "),
        (["--policies", "random"], "--out"),
    ],
)
def test_bad_input_is_one_line(
    options: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = evaluate.main(options)
    except SystemExit as end:
        code = int(str(end.code))
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert named in error
    assert list(tmp_path.iterdir()) == []
