"""Export a trained team to a file for ONNX Runtime, PyTorch or this library.

The command is `python -m marl_framework.export`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from marl_framework.command_line import (
    FAILED,
    Parser,
    add_checkpoint,
    add_overrides,
    as_program,
    check_out,
    loaded,
    warn,
    writing,
)
from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file
from marl_framework.runs.names import checkpoint_file
from marl_framework.training.guard import guarded

TOLERANCE = 1e-5
"""Largest accepted difference between an exported output and PyTorch's output."""

_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "weights": ".pt"}
_PACKAGES = {"onnx": ("onnx", "onnxruntime", "onnxscript")}


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.export", description=__doc__)
    add_checkpoint(parser, required=True)
    parser.add_argument(
        "--format",
        required=True,
        choices=tuple(_SUFFIXES),
        help="onnx (.onnx), torch (.pt2), or weights (.pt): a checkpoint with only the actor or "
        "map predictor, and the configuration",
    )
    parser.add_argument(
        "--observations",
        action="store_true",
        help="export the whole team, including observations and masks: maps in, actions out "
        "(default: policy of one UAV: observation and mask in, probabilities out)",
    )
    add_overrides(
        parser,
        "override a key of the checkpoint's configuration, such as the team size; repeatable",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    0 done, 1 failed or outputs differ from PyTorch, 2 bad input, 130 interrupted.
    """
    options = _make_parser().parse_args(arguments)
    return guarded(lambda _: _run(options), again="then run the command again")


def _run(options: argparse.Namespace) -> int:
    out = Path(options.out)
    _check(options, out)
    if options.format == "weights":
        return _write_weights(options, out)

    # Imported here, because they load PyTorch: help and bad input are reported at once.
    from marl_framework.exporting.exported import export, largest_difference, report, sample_inputs
    from marl_framework.exporting.portable import PortableActor, PortableTeam, mission_facts
    from marl_framework.planners.team import load_team, mission_config, trained_team

    loaded()
    team = load_team(options.checkpoint)
    config = mission_config(None, [*options.overrides, "compute.precision=float32"], team)
    config = config.one_area()
    actor = trained_team(config, team, "cpu").modules["actor"].eval()
    whole = options.observations
    module = PortableTeam(actor, config, "cpu") if whole else PortableActor(actor)
    samples = sample_inputs(module, config)
    portable = export(module, samples[0], options.format, mission_facts(config))
    difference = largest_difference(portable.run, module, samples)
    if not difference <= TOLERANCE:
        warn(
            f"error: outputs of the exported team differ from PyTorch by {difference:.1e}, more "
            f"than {TOLERANCE:g}; no file was written"
        )
        return FAILED
    with writing(out), atomic_file(out) as file:
        file.write(portable.content)
    print(report(out, portable, module, samples[-1], difference))
    return 0


def _write_weights(options: argparse.Namespace, out: Path) -> int:
    from marl_framework.planners.team import find_checkpoint, weights_alone
    from marl_framework.runs.checkpoint import save_checkpoint

    loaded()
    payload = weights_alone(find_checkpoint(options.checkpoint), options.overrides)
    with writing(out):
        save_checkpoint(out, payload)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")
    return 0


def _check(options: argparse.Namespace, out: Path) -> None:
    """Check all options before PyTorch loads."""
    form = options.format
    if out.suffix != _SUFFIXES[form]:
        raise ConfigError(f"--out {out}: the name must end in {_SUFFIXES[form]} for {form}")
    check_out(out, checkpoint_file(options.checkpoint))
    if out.exists() and out.resolve().parent.name == "checkpoints":
        raise ConfigError(f"--out {out} is a checkpoint of a run; choose another file")
    if missing := [name for name in _PACKAGES.get(form, ()) if find_spec(name) is None]:
        install = "run pip install 'marl_framework[onnx]'"
        raise ConfigError(f"--format {form}: {', '.join(missing)} not installed; {install}")
    if options.observations and form == "weights":
        raise ConfigError(
            f"--observations cannot be combined with --format {form}; omit --observations"
        )


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
