"""One of the kills that `tests.soak.kill_and_resume` makes many of."""

from __future__ import annotations

from pathlib import Path

from tests.soak.kill_and_resume import check, kill_and_resume


def test_a_killed_training_ends_like_one_that_was_not(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert kill_and_resume(runs, 1, seed=29, most_kills=1) == []
    # The check itself sees what is wrong.
    run = runs / "killed-0"
    (run / "checkpoints" / "step-00000004.pt").write_bytes(b"")
    summary = (run / "summary.json").read_text()
    (run / "summary.json").write_text(
        summary.replace('"weights_sha256": "', '"weights_sha256": "x')
    )
    (run / ".left.tmp").write_text("")
    problems = " ".join(check(run, runs / "whole"))
    for named in ("results differ", "it is damaged", "holds"):
        assert named in problems
