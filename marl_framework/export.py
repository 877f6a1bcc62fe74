"""Exports a trained team to one file: for ONNX Runtime, PyTorch, or this library elsewhere.

Run it with `python -m marl_framework.export`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from marl_framework.command_line import (
    BAD_INPUT,
    FAILED,
    Parser,
    add_checkpoint,
    add_overrides,
    as_program,
    loaded,
    plain_warnings,
)
from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file
from marl_framework.runs.names import checkpoint_file

TOLERANCE = 1e-5
"""Largest accepted difference of an output from PyTorch's."""

_WEIGHTS = "weights"
_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", _WEIGHTS: ".pt"}
_PACKAGES = {"onnx": ("onnx", "onnxruntime", "onnxscript"), "torch": (), _WEIGHTS: ()}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.export", description=__doc__)
    add = parser.add_argument
    add_checkpoint(parser, required=True)
    add(
        "--format",
        required=True,
        choices=tuple(_SUFFIXES),
        help="onnx (.onnx), torch (.pt2), or weights (.pt), a checkpoint of nothing but the actor "
        "or map predictor and its configuration",
    )
    add(
        "--observations",
        action="store_true",
        help="export the whole team with its observations and masks: maps in, actions out "
        "(default: one UAV's policy: observation and mask in, probabilities out)",
    )
    add_overrides(
        parser,
        "override a key of the checkpoint's configuration, such as the team size; repeatable",
    )
    add("--out", required=True, metavar="FILE", help="file to write")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if done, 1 if outputs differ from PyTorch, 2 on bad input."""
    options = _parser().parse_args(arguments)
    try:
        with plain_warnings():
            return _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _run(options: argparse.Namespace) -> int:
    out = Path(options.out)
    _check(options.format, out)
    checkpoint = checkpoint_file(options.checkpoint)
    if out.exists() and out.samefile(checkpoint):
        raise ConfigError(f"--out {out}: it is the checkpoint to export; name another file")
    if options.format == _WEIGHTS:
        return _write_weights(options, out)

    # These load PyTorch: help and bad input come at once.
    from marl_framework.exporting.exported import export, largest_difference, report, sample_inputs
    from marl_framework.exporting.portable import PortableActor, PortableTeam, mission_facts
    from marl_framework.planners.team import load_team, mission_config, trained_team

    loaded()
    team = load_team(options.checkpoint)
    config = mission_config(None, [*options.overrides, "compute.precision=float32"], team)
    actor = trained_team(config, team, "cpu").modules["actor"].eval()
    module: PortableActor | PortableTeam = PortableActor(actor)
    if options.observations:
        module = PortableTeam(actor, config, "cpu")
    samples = sample_inputs(module, config)
    portable = export(module, samples, options.format, mission_facts(config))
    difference = largest_difference(portable.run, module, samples)
    if not difference <= TOLERANCE:
        print(
            f"error: the exported team differs from PyTorch by {difference:.1e}, more than the "
            f"allowed {TOLERANCE:g}; nothing was written",
            file=sys.stderr,
        )
        return FAILED
    with _writable(out), atomic_file(out) as file:
        file.write(portable.content)
    print(report(out, portable, module, samples, difference))
    return 0


def _write_weights(options: argparse.Namespace, out: Path) -> int:
    if options.observations:
        raise ConfigError(f"--observations: not with --format {_WEIGHTS}; leave it out")

    from marl_framework.planners.team import find_checkpoint, weights_alone
    from marl_framework.runs.checkpoint import save_checkpoint

    loaded()
    payload = weights_alone(find_checkpoint(options.checkpoint), options.overrides)
    with _writable(out):
        save_checkpoint(out, payload)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")
    return 0


@contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def _check(form: str, out: Path) -> None:
    """Check format and file name.

    Raises:
        ConfigError: the suffix does not fit the format, the folder does not exist, the file is a
            checkpoint of a run, or a package is not installed.
    """
    if out.suffix != _SUFFIXES[form]:
        raise ConfigError(f"--out {out}: the name must end in {_SUFFIXES[form]} for {form}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if out.exists() and out.resolve().parent.name == "checkpoints":
        raise ConfigError(f"--out {out}: it is a checkpoint of a run; name another file")
    missing = [name for name in _PACKAGES[form] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--format {form}: {', '.join(missing)} not installed; "
            "run pip install 'marl_framework[onnx]'"
        )


def command() -> int:
    """Run the command line as a program of its own; return its exit code."""
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
