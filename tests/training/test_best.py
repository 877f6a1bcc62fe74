"""Which checkpoint is the best one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.planners.team import find_checkpoint
from marl_framework.runs import checkpoint_store
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.runs.folder import RunFolder
from marl_framework.training.trainer import Trainer
from marl_framework.training.validation import Validation
from tests.small import small_config

QUICK = {"data_passes": 1, "batch_number": 1}
VALIDATIONS = ((0.5, 0.6, 3.0), (0.4, 0.5, 2.0), (0.6, 0.8, 1.0), (0.6, 0.7, 2.5))


def let_fly(monkeypatch: pytest.MonkeyPatch, rows: Iterable[tuple[float, float, float]]) -> None:
    """Let validations return these means; fail after the last one."""
    flown = iter(rows)

    def fly(_: Validation) -> dict[str, torch.Tensor]:
        row = next(flown, None)
        if row is None:
            raise MemoryError
        return dict(zip(("roi_entropy", "f1", "return"), torch.tensor(row), strict=True))

    monkeypatch.setattr(Validation, "fly", fly)


@pytest.mark.parametrize(("by", "step"), [("return", 1), ("entropy", 2), ("f1", 3)])
def test_it_is_the_one_asked_for(by: str, step: int, tmp_path, monkeypatch) -> None:
    let_fly(monkeypatch, VALIDATIONS)
    learning = QUICK | {"training_steps": 4}
    config = small_config(evaluation={"interval": 1, "best_by": by}, learning=learning)
    run = RunFolder.create(tmp_path, "t", config)
    results = Trainer(config, torch.device("cpu")).train(run)["results"]
    assert results["best"]["training_step"] == step
    assert find_checkpoint(str(run.path)).payload["training_step"] == step


def test_a_run_resumed_after_a_crash_knows_it(tmp_path, monkeypatch) -> None:
    let_fly(monkeypatch, VALIDATIONS[:2])
    config = small_config(evaluation={"interval": 1}, learning=QUICK | {"training_steps": 4})
    run = RunFolder.create(tmp_path, "t", config)
    with pytest.raises(MemoryError):
        Trainer(config, torch.device("cpu")).train(run)
    best, last = (load_checkpoint(run.checkpoints / name) for name in ("best.pt", "last.pt"))
    assert best["best"] == last["best"]
    assert best["best"]["training_step"] == 2


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize(
    ("entropies", "fails", "step"),
    [
        ((0.5, 0.4, 0.6, 0.45), 2, 4),  # better than the best that was written
        ((0.5, 0.4, 0.6, 0.6), 2, 1),
        ((0.5, 0.6, 0.7, 0.8), 1, 2),
    ],
)
def test_it_is_the_best_that_could_be_written(
    entropies: tuple[float, ...], fails: int, step: int, crashes: bool, tmp_path, monkeypatch
) -> None:
    def save(path: Path, payload: dict[str, Any]) -> None:
        if path.name == "best.pt" and payload["training_step"] == fails:
            raise OSError(28, "No space left on device")
        save_checkpoint(path, payload)

    monkeypatch.setattr(checkpoint_store, "save_checkpoint", save)
    config = small_config(evaluation={"interval": 1}, learning=QUICK | {"training_steps": 4})
    run = RunFolder.create(tmp_path, "t", config)
    trainer = Trainer(config, torch.device("cpu"))
    rows = [(entropy, 0.0, 0.0) for entropy in entropies]
    if crashes:
        let_fly(monkeypatch, rows[:fails])
        with pytest.raises(MemoryError):
            trainer.train(run)
        trainer = Trainer(config, torch.device("cpu"))
        trainer.load_state_dict(load_checkpoint(run.checkpoints / "last.pt"))
        rows = rows[fails:]
    let_fly(monkeypatch, rows)
    results = trainer.train(run)["results"]
    best, last = (load_checkpoint(run.checkpoints / name) for name in ("best.pt", "last.pt"))
    assert results["best"] == last["best"] == best["best"]
    assert results["best"]["training_step"] == best["training_step"] == step


@pytest.mark.parametrize(("by", "steps"), [("entropy", 5), ("return", 3)])
def test_patience_waits_for_it(by: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entropies fall and returns do not rise."""
    let_fly(monkeypatch, [(entropy, 0.0, 1.0) for entropy in (0.5, 0.4, 0.3, 0.2, 0.1)])
    learning = QUICK | {"training_steps": 5, "patience": 2}
    config = small_config(evaluation={"interval": 1, "best_by": by}, learning=learning)
    trainer = Trainer(config, torch.device("cpu"))
    trainer.train(None)
    assert trainer.steps == steps
