"""Work for new processes, in a file that loads no library: each of them imports it."""

import os

from benchmarks.helpers.processes import repeat_until_all_are_here, wait_for_others


def wait_and_repeat(number: int) -> tuple[int, int]:
    wait_for_others()
    repeat_until_all_are_here(lambda: None)
    return number, os.getpid()
