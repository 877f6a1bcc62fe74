"""Intervals in training steps."""


def passes(interval: int, before: int, step: int) -> bool:
    """Whether a multiple of an interval lies in (before, step]; never for interval 0.

    Several steps may be made at once, `learning.update_interval` of them.
    """
    return interval > 0 and step // interval > before // interval
