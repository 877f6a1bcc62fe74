"""Which checkpoint is the best one."""

from __future__ import annotations

import pytest
import torch

from marl_framework.planners.team import find_checkpoint
from marl_framework.runs.checkpoint import load_checkpoint
from marl_framework.runs.folder import RunFolder
from marl_framework.training.trainer import Trainer
from marl_framework.training.validation import Validation
from tests.small import small_config

VALIDATIONS = ((0.5, 0.6, 3.0), (0.4, 0.5, 2.0), (0.6, 0.8, 1.0), (0.6, 0.7, 2.5))


@pytest.mark.parametrize(("by", "step"), [("return", 1), ("entropy", 2), ("f1", 3)])
def test_it_is_the_one_asked_for(by: str, step: int, tmp_path, monkeypatch) -> None:
    flown = iter(VALIDATIONS)

    def fly(_: Validation) -> dict[str, torch.Tensor]:
        return dict(zip(("roi_entropy", "f1", "return"), torch.tensor(next(flown)), strict=True))

    monkeypatch.setattr(Validation, "fly", fly)
    settings = {"evaluation": {"interval": 1, "best_by": by}, "learning": {"training_steps": 4}}
    config = small_config(**settings)
    run = RunFolder.create(tmp_path, "t", config)
    results = Trainer(config, torch.device("cpu")).train(run)["results"]
    assert results["best"]["training_step"] == step
    assert find_checkpoint(str(run.path)).payload["training_step"] == step


def test_what_goes_on_after_a_crash_knows_it(tmp_path, monkeypatch) -> None:
    flown = iter(VALIDATIONS[:2])

    def fly(_: Validation) -> dict[str, torch.Tensor]:
        row = next(flown, None)
        if row is None:
            raise MemoryError
        return dict(zip(("roi_entropy", "f1", "return"), torch.tensor(row), strict=True))

    monkeypatch.setattr(Validation, "fly", fly)
    config = small_config(evaluation={"interval": 1}, learning={"training_steps": 4})
    run = RunFolder.create(tmp_path, "t", config)
    with pytest.raises(MemoryError):
        Trainer(config, torch.device("cpu")).train(run)
    best, last = (load_checkpoint(run.checkpoints / name) for name in ("best.pt", "last.pt"))
    assert best["best"] == last["best"]
    assert best["best"]["training_step"] == 2


def test_patience_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entropies fall and returns do not rise."""
    entropies = iter([0.5, 0.4, 0.3, 0.2, 0.1])

    def fly(_: Validation) -> dict[str, torch.Tensor]:
        return dict(
            zip(("roi_entropy", "f1", "return"), torch.tensor([next(entropies), 0, 1]), strict=True)
        )

    monkeypatch.setattr(Validation, "fly", fly)
    made = []
    for by in ("entropy", "return"):
        settings = {"evaluation": {"interval": 1, "best_by": by}}
        config = small_config(**settings, learning={"training_steps": 5, "patience": 2})
        trainer = Trainer(config, torch.device("cpu"))
        trainer.train(None)
        made.append(trainer.algorithm.training_steps)
        entropies = iter([0.5, 0.4, 0.3, 0.2, 0.1])
    assert made == [5, 3]
