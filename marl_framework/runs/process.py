"""Identifies processes beyond their numbers, which are used again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def this_process() -> dict[str, Any]:
    """Return number and start of this process, host and the start of the host."""
    number, host = os.getpid(), os.uname().nodename
    return {"number": number, "started": start_time(number), "host": host, "boot": _boot()}


def is_alive(process: Mapping[str, Any]) -> bool | None:
    """Return whether a process described by `this_process` runs; None if it was on another host."""
    if process.get("host") != os.uname().nodename:
        return None
    if process.get("boot") != _boot():  # the host was started again, as after a power cut
        return False
    return start_time(process.get("number", 0)) == process.get("started")


def start_time(number: int) -> str:
    """Return when a process started, in ticks since the host did; empty where it is gone."""
    try:
        text = (_PROC / str(number) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]  # field 22 of proc(5), starttime


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
