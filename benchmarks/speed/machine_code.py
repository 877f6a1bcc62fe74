"""Compile the Triton kernels for three kinds of GPUs: `python -m benchmarks.speed.machine_code`.

All kernels of a training are compiled for sm_80, sm_89 and sm_90; no GPU is needed. A kernel with
fewer registers leaves room for more threads at once; one that spills moves numbers through memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.helpers.command_line import Job, Parser
from benchmarks.helpers.kernel_launches import STAGES
from benchmarks.helpers.machine_code import ARCHITECTURES, Launch, compile_for
from benchmarks.helpers.text import table_text


def measure(job: Job) -> dict[str, Any]:
    """Compile all kernels of a training.

    Returns:
        `rows` with `stage`, `kernel`, `architecture`, `registers`, `spilled_bytes` and
        `shared_bytes`.
    """
    rows = []
    for stage, launches in STAGES.items():
        # Launches that differ only in precision or memory layout share a row with their maximum.
        variants: dict[str, list[Launch]] = {}
        for launch in launches(job.config):
            variants.setdefault(launch.variant, []).append(launch)
        for variant, alike in variants.items():
            for architecture in ARCHITECTURES:
                codes = [compile_for(launch, architecture) for launch in alike]
                rows.append(
                    {
                        "stage": stage,
                        "kernel": variant,
                        "architecture": architecture,
                        "registers": max(code.registers for code in codes),
                        "spilled_bytes": max(code.spilled for code in codes),
                        "shared_bytes": max(code.shared for code in codes),
                    }
                )
    return {"rows": rows}


def table(results: dict[str, Any]) -> str:
    """Return the results as text."""
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        kernels.setdefault((row["stage"], row["kernel"]), []).append(row)
    lines = [
        (
            *name,
            *(f"{row['registers']}" for row in rows),
            f"{max(row['spilled_bytes'] for row in rows)} B",
            f"{max(row['shared_bytes'] for row in rows) / 1024:.1f} KiB",
        )
        for name, rows in kernels.items()
    ]
    header = ("part", "kernel", *(f"sm_{each}" for each in ARCHITECTURES), "spilled", "shared")
    return table_text("Registers of a thread", header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    description = "Compile the kernels of a training for GPUs."
    parser = Parser("speed.machine_code", description, "params_gpu.yaml", device=False)
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
