"""Identify processes reliably, although the system reuses process numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def this_process() -> dict[str, Any]:
    """Return number and start time of this process, its host and the host's boot ID."""
    number, host = os.getpid(), os.uname().nodename
    return {"number": number, "started": start_time(number), "host": host, "boot": _boot_id()}


def is_alive(process: Mapping[str, Any]) -> bool | None:
    """Return whether a process described by `this_process` is running; None on another host."""
    if process.get("host") != os.uname().nodename:
        return None
    if process.get("boot") != _boot_id():  # the host was restarted
        return False
    number, started = process.get("number", 0), process.get("started")
    return start_time(number) == started if started else _exists(number)


def start_time(number: int) -> str:
    """Return the start time of a process [ticks since boot]; empty if the process has ended."""
    try:
        text = (_PROC / str(number) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]  # field 22 of proc(5), starttime


def _exists(number: int) -> bool:
    """Return whether any process has this number; for systems without /proc, such as macOS."""
    try:
        os.kill(number, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it belongs to another user
    return True


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
