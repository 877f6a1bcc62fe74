"""What becomes of a careless user's commands? `python -m tests.soak.hostile_commands`.

Each case of `hostile_cases.py` makes files, runs a command in a process of its own, and says how
that may end. In every case there must be no traceback, no code out of a file may run, and a
refusal (exit code 2) is one line that names what is wrong, with nothing changed. Afterwards the
trained run that the cases had copies of must still be as it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_framework.command_line import BAD_INPUT, Parser

ROOT = Path(__file__).resolve().parents[2]
OWNED = "owned"
"""A file of this name in a case's folder shows that code out of a file was run."""
_WAYS = {0: "done", 1: "failed with a reason", BAD_INPUT: "refused", 130: "interrupted"}
_PATIENCE = 300  # seconds

Ended = tuple[int, str]
"""Exit code, negative for a signal, and what was said on standard error."""


def run(command: Sequence[str], at: Path) -> Ended:
    """Run a command in a folder to its end."""
    done = subprocess.run(
        command,
        cwd=at,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_PATIENCE,
    )
    return done.returncode, done.stderr.decode(errors="replace")


def environment() -> dict[str, str]:
    """Return the environment of the commands: this checkout's package, one thread."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


@dataclass(frozen=True)
class Case:
    """A command and how it may end."""

    name: str
    command: Sequence[str]
    """Module of the package and its arguments; it runs in the case's folder."""
    codes: Sequence[int] = (BAD_INPUT,)
    """Exit codes that are right; negative for a signal that may end it."""
    named: str = ""
    """What the line of a refusal must hold."""
    prepare: Callable[[Path, Path], object] = lambda at, whole: None
    """Makes files in the case's folder, out of a trained run."""
    drive: Callable[[Sequence[str], Path], Ended] = run
    """Runs the command, perhaps several times or with signals."""


def outcome(case: Case, at: Path, whole: Path) -> tuple[str, str]:
    """Run a case in an empty folder; return how it ended, and what is wrong with that."""
    case.prepare(at, whole)
    before = _files(at)
    module, *arguments = case.command
    program = [sys.executable, "-m", f"marl_framework.{module}", *arguments]
    code, said = case.drive(program, at)
    how = _WAYS.get(code) or f"ended by {signal.Signals(-code).name}"
    lines = [line for line in said.splitlines() if not line.startswith("warning: ")]
    problems = []
    if code not in case.codes:
        problems.append(f"exit code {code}")
    if "Traceback" in said:
        problems.append("a traceback")
    if (at / OWNED).exists():
        problems.append("code was run")
    if code == BAD_INPUT:
        if len(lines) != 1 or not lines[0].startswith("error: "):
            problems.append("not one line")
        if case.named not in said:
            problems.append(f"{case.named!r} is not named")
        if _files(at) != before:
            problems.append("files have changed")
    return how, f"{', '.join(problems)}: {said[-500:]}" if problems else ""


def _files(at: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file, but for locks."""
    files = [path for path in at.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def train_whole(runs: Path) -> Path:
    """Train the run that cases take copies of."""
    command = [sys.executable, "-m", "marl_framework.main", "--config", "params_test.yaml"]
    command += ["--device", "cpu", "--run-name", "whole", "--set", "logging.checkpoint_interval=1"]
    code, said = run(command, runs.parent)
    if code:
        raise SystemExit(f"the training failed: {said}")
    return runs / "whole"


def try_all(cases: Iterable[Case], whole: Path) -> tuple[Counter[str], list[str]]:
    """Try cases; return how many ended in which way, and what was wrong."""
    counts: Counter[str] = Counter()
    problems = []
    before = _files(whole)
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            how, problem = outcome(case, Path(folder), whole)
        counts[how] += 1
        print(f"{case.name}: {problem or how}", flush=True)
        problems += [f"{case.name}: {problem}"] if problem else []
    if _files(whole) != before:
        problems.append("the trained run has changed")
    return counts, problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 where every command ended as it may."""
    from tests.soak.hostile_cases import all_cases

    parser = Parser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--list", action="store_true", help="list the cases and do nothing else")
    options = parser.parse_args(arguments)
    cases = [case for case in all_cases() if options.only in case.name]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        counts, problems = try_all(cases, train_whole(Path(folder) / "runs"))
    print(f"{len(cases)} commands: {', '.join(f'{n} {how}' for how, n in counts.most_common())}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
