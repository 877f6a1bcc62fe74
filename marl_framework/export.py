"""Exports a trained team to one file for ONNX Runtime or PyTorch.

Run it with `python -m marl_framework.export`.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_framework.command_line import (
    BAD_INPUT,
    Parser,
    add_checkpoint,
    add_overrides,
    plain_warnings,
)
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_from_dict, config_to_dict
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import RandomPlanner
from marl_framework.planners.portable import PortableActor, PortableTeam, mission_facts
from marl_framework.planners.team import find_checkpoint, mission_config, trained_team
from marl_framework.runs.files import atomic_file

FACTS = "mission"
"""Metadata key of the mission's data in an ONNX file, see `mission_facts`."""
FACTS_FILE = "mission.json"
"""Name of the mission's data in a `torch.export` file."""
TOLERANCE = 1e-5
"""Largest accepted difference of an output from PyTorch's."""

_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
_PACKAGES = {"onnx": ("onnx", "onnxruntime", "onnxscript"), "torch": ()}
_EXIT_FAILED = 1
_MISSIONS = 5  # flown to compare the exported team with PyTorch
_LATENCY_SECONDS = 0.5  # duration of a latency measurement

Module = PortableActor | PortableTeam
Arrays = dict[str, np.ndarray[Any, Any]]
Run = Callable[[Arrays], list[np.ndarray[Any, Any]]]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.export", description=__doc__)
    add = parser.add_argument
    add_checkpoint(parser, required=True)
    add("--format", required=True, choices=tuple(_SUFFIXES), help="onnx (.onnx) or torch (.pt2)")
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
    checkpoint = find_checkpoint(options.checkpoint)
    config = mission_config(None, [*options.overrides, "compute.precision=float32"], checkpoint)
    actor = trained_team(config, checkpoint, "cpu").modules["actor"].eval()
    module: Module = PortableActor(actor)
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
        return _EXIT_FAILED
    try:
        with atomic_file(out) as file:
            file.write(portable.content)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    print(report(out, portable, module, samples, difference))
    return 0


def _check(form: str, out: Path) -> None:
    """Check format and file name.

    Raises:
        ConfigError: the suffix does not fit the format, the folder does not exist, or a package
            is not installed.
    """
    if out.suffix != _SUFFIXES[form]:
        raise ConfigError(f"--out {out}: the name must end in {_SUFFIXES[form]} for {form}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    missing = [name for name in _PACKAGES[form] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--format {form}: {', '.join(missing)} not installed; "
            "run pip install 'marl_framework[onnx]'"
        )


@dataclass(frozen=True)
class Portable:
    """An exported team."""

    content: bytes
    """Content of the file."""
    run: Run
    """Runs the exported team on named arrays."""


def sample_inputs(module: Module, config: Config) -> list[tuple[Tensor, ...]]:
    """Return the module's inputs at each move of random flights over synthetic terrain.

    The first axis holds the missions, or for `PortableActor` all UAVs of all missions.
    """
    tree = config_to_dict(config)
    tree["sensor"]["simulation"]["kinds"] = ["split"]  # the map used in training may be missing
    env = MissionEnvironment(config_from_dict(tree), _MISSIONS, "cpu", "test")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = RandomPlanner(env.lattice)
    state = env.reset(env.draw_reset())
    samples: list[tuple[Tensor, ...]] = []
    for _ in range(min(env.episode_length, 15)):
        actions, masks, *_ = planner.act(state, env.generator)
        if isinstance(module, PortableActor):
            samples.append((builder.actor(state).flatten(0, 1), masks.flatten(0, 1)))
        else:
            samples.append(tuple(getattr(state, name).clone() for name in module.inputs))
        env.step(state, actions, env.draw_step())
    return samples


def export(
    module: Module, samples: Sequence[tuple[Tensor, ...]], form: str, facts: dict[str, Any]
) -> Portable:
    """Export a module.

    Args:
        module: module to export.
        samples: example inputs; the exported module accepts any length of their first axis.
        form: `onnx` or `torch`.
        facts: data of the mission in plain types, stored in the file.
    """
    count = torch.export.Dim("count")
    text = json.dumps(facts)
    with _quiet(), torch.no_grad():
        program = torch.export.export(
            module, samples[0], dynamic_shapes=tuple({0: count} for _ in samples[0])
        )
        if form == "torch":
            buffer = io.BytesIO()
            torch.export.save(program, buffer, extra_files={FACTS_FILE: text})
            return Portable(buffer.getvalue(), _run_torch(buffer, module))
        exported = torch.onnx.export(
            program,
            samples[0],
            input_names=list(module.inputs),
            output_names=list(module.outputs),
            dynamo=True,
            verbose=False,
        )
    assert exported is not None
    exported.model.metadata_props[FACTS] = text
    content = exported.model_proto.SerializeToString()
    return Portable(content, _run_onnx(content))


def _run_torch(buffer: io.BytesIO, module: Module) -> Run:
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()

    def run(arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        outputs = _as_tuple(loaded(*(torch.from_numpy(arrays[name]) for name in module.inputs)))
        return [output.numpy() for output in outputs]

    return run


def _run_onnx(content: bytes) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        return list(session.run(None, arrays))

    return run


@torch.no_grad()
def largest_difference(run: Run, module: Module, samples: Sequence[tuple[Tensor, ...]]) -> float:
    """Return the largest difference of any output from PyTorch's, also for a batch of one."""
    largest = 0.0
    for sample in (*samples, _first_entry(samples[-1])):
        expected = _as_tuple(module(*sample))
        for ours, theirs in zip(expected, run(_arrays(module, sample)), strict=True):
            largest = max(largest, float(np.abs(ours.numpy() - theirs).max()))
    return largest


@torch.no_grad()
def report(
    out: Path,
    portable: Portable,
    module: Module,
    samples: Sequence[tuple[Tensor, ...]],
    difference: float,
) -> str:
    """Return a summary of the exported file: inputs, outputs, accuracy and latency."""
    sample = _first_entry(samples[-1])
    arrays = _arrays(module, sample)
    what = "one UAV" if isinstance(module, PortableActor) else "one team"
    inputs = ", ".join(f"{name} {list(arrays[name].shape)}" for name in module.inputs)
    return "\n".join(
        (
            f"wrote {out}: {len(portable.content) / 1e6:.2f} MB",
            f"inputs for {what}: {inputs}",
            f"outputs: {', '.join(module.outputs)}",
            f"largest difference to PyTorch: {difference:.1e}",
            f"latency of {what}: {_median_ms(lambda: portable.run(arrays)):.2f} ms "
            f"(PyTorch: {_median_ms(lambda: module(*sample)):.2f} ms)",
        )
    )


def _arrays(module: Module, sample: Sequence[Tensor]) -> Arrays:
    return {name: value.numpy() for name, value in zip(module.inputs, sample, strict=True)}


def _first_entry(sample: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(value[:1] for value in sample)


def _as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _median_ms(call: Callable[[], object]) -> float:
    """Return the median duration of a call [ms], after one call to warm up."""
    call()
    times: list[float] = []
    while sum(times) < _LATENCY_SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the logs and warnings of PyTorch's exporters."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


if __name__ == "__main__":
    sys.exit(main())
