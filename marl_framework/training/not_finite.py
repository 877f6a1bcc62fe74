"""Updates that were not finite, and so not applied: how many a training bears."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from marl_framework.runs.checkpoint import save_checkpoint
from marl_framework.runs.folder import RunFolder


class NumericalError(ArithmeticError):
    """The training stopped because too many updates were not finite."""


def tell_or_stop(
    skipped: int,
    allowed: int,
    until: str,
    advice: str,
    state: Callable[[], Mapping[str, Any]],
    run: RunFolder | None,
    say: Callable[[str], None],
) -> None:
    """Tell of updates that were not finite, or stop and save the state that explains them.

    Args:
        skipped: so many they are.
        allowed: `learning.max_skipped_updates`.
        until: names the latest training step or round.
        advice: what the user can do.
        state: returns what is saved, into `not_finite.pt` of the run.
        run: where there is one.
        say: shows a line.

    Raises:
        NumericalError: they are more than allowed.
    """
    text = (
        f"{skipped} updates up to {until} had a loss or gradient that is not finite and were not "
        "applied"
    )
    limit = f"learning.max_skipped_updates allows {allowed}"
    if skipped <= allowed:
        say(f"warning: {text}; {limit}")
        return
    where = ""
    if run is not None:
        dump = run.path / "not_finite.pt"
        where = f"; the state is in {dump}"
        try:
            save_checkpoint(dump, state())
        except OSError as error:
            say(f"warning: {dump} could not be written: {error.strerror or error}")
    raise NumericalError(f"{text}; {limit}{where}; {advice}")
