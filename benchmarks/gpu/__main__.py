"""Check and measure everything that needs a GPU, in one run; failures are listed.

    python -m benchmarks.gpu [--device cuda:1] [--out FOLDER] [--only doctor,layers] [--quick]

Each stage is a process with a time limit, a log and, if it measures, a JSON. No stage starts after
`--minutes` in total. The last lines are a table in Markdown, which `report.md` holds too;
`report.json` has the same for programs.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from benchmarks import COMMIT
from benchmarks.gpu.machine import machine_facts, missing_packages
from benchmarks.gpu.stages import Outcome, Settings, Stage, make_stages, run_stage, same_weights
from marl_framework.command_line import BAD_INPUT, Parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; return 0 if all pass, 1 if one fails, 2 for bad input."""
    parser = Parser(prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N or cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try all stages")
    parser.add_argument("--only", metavar="STAGE,…", help="these stages (default: all)")
    parser.add_argument(
        "--minutes", type=float, default=15.0, metavar="M", help="for all stages (default: 15)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="for logs and results (default: runs/gpu-TIME)"
    )
    parser.add_argument(
        "--commit", metavar="HASH", help="commit of a copy without .git, for the results"
    )
    options = parser.parse_args(arguments)
    if options.commit:
        os.environ[COMMIT] = options.commit  # for all stages
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: must be above 0")
    if lacking := missing_packages():
        names = shlex.join(lacking)
        print(
            f"error: missing packages: {', '.join(lacking)}\n"
            "  on a machine with a network, the same Python and platform:\n"
            f"    python -m pip download -c constraints.txt -d wheels {names}\n"
            f"  then here: python -m pip install --no-index --find-links wheels {names}",
            file=sys.stderr,
        )
        return BAD_INPUT
    out: Path = options.out or Path("runs") / f"gpu-{datetime.now():%Y%m%dT%H%M%S}"
    stages = make_stages(Settings(options.device, out.absolute(), options.quick))
    if options.only:
        wanted, known = options.only.split(","), [stage.name for stage in stages]
        if unknown := [name for name in wanted if name not in known]:
            parser.error(f"--only {unknown[0]}: choose from {', '.join(known)}")
        stages = [stage for stage in stages if stage.name in wanted]
    try:
        out.mkdir(parents=True)
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}; name a new folder")
    return _run(stages, out.absolute(), options.device, options.minutes)


def _run(stages: Sequence[Stage], out: Path, device: str, minutes: float) -> int:
    """Run stages one after the other within the time; report."""
    facts = machine_facts(device)
    outcomes: list[Outcome] = []
    end = time.monotonic() + 60 * minutes
    for stage in stages:
        limit = min(stage.limit, end - time.monotonic())
        if limit > 0:
            print(f"{stage.name} (at most {limit:.0f} s) …", flush=True)
            outcomes.append(run_stage(replace(stage, limit=limit), out))
        else:
            reason = f"not started: --minutes {minutes:g} have passed"
            outcomes.append(Outcome(stage.name, list(stage.arguments), 0.0, False, "", reason))
        _report(facts, outcomes, out)  # in case the next stage takes the machine down
    if compared := same_weights(out, outcomes):
        outcomes.append(compared)
    print(f"\n{_report(facts, outcomes, out)}\nlogs and results: {os.path.relpath(out)}")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _report(facts: dict[str, str], outcomes: Sequence[Outcome], out: Path) -> str:
    """Write `report.json` and `report.md`; return the latter."""
    whole = {"machine": facts, "stages": [asdict(outcome) for outcome in outcomes]}
    (out / "report.json").write_text(
        json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    lines = [*(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["| stage | seconds | key figure | result |", "|---|---|---|---|"]
    for outcome in outcomes:
        figure = outcome.figure.replace("|", "\\|")
        result = "ok" if outcome.ok else f"failed: {outcome.reason}".replace("|", "\\|")
        lines.append(f"| {outcome.stage} | {outcome.seconds:.1f} | {figure} | {result} |")
    text = "\n".join(lines) + "\n"
    (out / "report.md").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
