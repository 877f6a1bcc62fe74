"""What the Triton kernels need of three kinds of GPUs: `python -m benchmarks.speed.machine_code`.

All kernels of a training are compiled for sm_80, sm_89 and sm_90; no GPU is needed. A kernel that
needs fewer registers leaves room for more threads at once; one that spills has no register for
some of its numbers, and moves them through memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Parser
from benchmarks.helpers.kernel_launches import STAGES
from benchmarks.helpers.machine_code import ARCHITECTURES, Launch, compile_for
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config


def run(config: Config, device: torch.device) -> dict[str, Any]:
    """Compile all kernels of a training.

    Args:
        config: of the training.
        device: of this machine, for its description.

    Returns:
        `rows` with `stage`, `kernel`, `architecture`, `registers`, `spilled_bytes` and
        `shared_bytes`; `settings` and `machine`.
    """
    rows = []
    for stage, launches in STAGES.items():
        # What differs in precision or order of memory alone has one row, of what needs most.
        variants: dict[str, list[Launch]] = {}
        for launch in launches(config):
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
    settings = {"configuration": config_to_dict(config)}
    return {"rows": rows, "settings": settings, "machine": harness.announce_machine(device)}


def table(found: dict[str, Any]) -> str:
    """Return the results as text."""
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found["rows"]:
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
    return harness.table_text("Registers of a thread", header, lines)


# Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 2 for bad input."""
    description = "Compile the kernels of a training for GPUs."
    parser = Parser("speed.machine_code", description, "params_gpu.yaml", device=False)
    return parser.publish(parser.parse_args(arguments), _measure, table)


def _measure(_: argparse.Namespace, config: Config, device: torch.device) -> dict[str, Any]:
    return run(config, device)


if __name__ == "__main__":
    sys.exit(main())
