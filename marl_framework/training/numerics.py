"""Updates that are not finite: how many a training bears."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.runs.checkpoint import save_checkpoint


class NumericalError(ArithmeticError):
    """The training stopped because too many updates were not finite."""


def check_numbers(
    coma: COMAWrapper,
    allowed: int,
    written: Mapping[str, float],
    folder: Path,
    report: Callable[[str], None],
) -> None:
    """Stop where too many updates were not finite; called when metrics were read anyway.

    Args:
        coma: that learns.
        allowed: `networks.max_skipped_updates`.
        written: metrics just read.
        folder: where the state goes that explains it.
        report: shows a line.

    Raises:
        NumericalError: there were more than are allowed.
    """
    if not written.get("skipped_updates"):
        return
    skipped, step = coma.count_skipped(), coma.training_steps
    text = f"{skipped} updates up to training step {step} had a loss or gradient that is not "
    text += "finite and were not applied"
    if skipped <= allowed:
        report(f"warning: {text}; networks.max_skipped_updates allows {allowed}")
        return
    dump = folder / "not_finite.pt"
    try:
        save_checkpoint(dump, {**coma.state_dict(), "metrics": dict(written)})
    except OSError as error:
        report(f"warning: {dump} could not be written: {error.strerror or error}")
    raise NumericalError(
        f"{text}; networks.max_skipped_updates allows {allowed}; the state is in {dump}; "
        "lower networks.actor.learning_rate, networks.critic.learning_rate or gradient_norm, "
        "or use networks.precision=float32"
    )
