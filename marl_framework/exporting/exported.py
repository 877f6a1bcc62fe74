"""Export of a trained team for ONNX Runtime or PyTorch, with checks of accuracy and latency."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.exporting.portable import PortableActor, PortableTeam
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import RandomPlanner

FACTS, FACTS_FILE = "mission", "mission.json"
"""Where `mission_facts` is stored: metadata key in ONNX, extra file in `torch.export`."""

_MISSIONS = 5  # number of missions for comparing the exported team with PyTorch
_LATENCY_SECONDS = 0.5  # duration of a latency measurement

Module = PortableActor | PortableTeam
Sample = tuple[Tensor, ...]  # inputs; first axis: missions, or UAVs for `PortableActor`
Run = Callable[[Sample], Sequence[Tensor]]


class Portable(NamedTuple):
    """An exported team: the file's content, and a function that runs it without this library."""

    content: bytes
    run: Run


def sample_inputs(module: Module, config: Config) -> list[Sample]:
    """Return the module's inputs at each move in random flights over synthetic terrain."""
    split = {"sensor": {"simulation": {"kinds": ["split"]}}}  # a measured map may be missing
    synthetic = with_changes(config, split, "an exported team")
    env = MissionEnvironment(synthetic, _MISSIONS, "cpu", "test")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = RandomPlanner(env.lattice)
    state = env.reset()
    starts = state.positions.clone()
    samples: list[Sample] = []
    for _ in range(min(env.episode_length, 15)):
        actions, masks, *_ = planner.act(state, env.generator)
        if isinstance(module, PortableActor):
            samples.append((builder.actor(state).flatten(0, 1), masks.flatten(0, 1)))
        else:
            values = vars(state) | {"starts": starts}
            samples.append(tuple(values[name].clone() for name in module.inputs))
        env.step(state, actions)
    return samples


def export(module: Module, sample: Sample, form: str, facts: dict[str, Any]) -> Portable:
    """Export a module, with a dynamic first axis of its inputs.

    `sample` holds example inputs; `form` is `onnx` or `torch`; `facts` are stored in the file.
    Raises ConfigError if a custom network cannot be exported.
    """
    shapes = tuple({0: torch.export.Dim("count")} for _ in sample)
    with _quiet_exporters(), torch.no_grad():
        try:
            program = torch.export.export(module, sample, dynamic_shapes=shapes)
        except Exception as error:  # PyTorch and networks raise many types
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"torch.export cannot trace the actor, {type(module.actor).__name__}: {reason}; "
                "remove branches on values and batch size, or use --format weights"
            ) from error
        if form == "torch":
            buffer = io.BytesIO()
            torch.export.save(program, buffer, extra_files={FACTS_FILE: json.dumps(facts)})
            buffer.seek(0)
            loaded = torch.export.load(buffer).module()
            return Portable(buffer.getvalue(), lambda sample: _as_tuple(loaded(*sample)))
        import onnxruntime

        inputs, outputs = list(module.inputs), list(module.outputs)
        exported = torch.onnx.export(
            program, sample, input_names=inputs, output_names=outputs, dynamo=True, verbose=False
        )
    assert exported is not None
    exported.model.metadata_props[FACTS] = json.dumps(facts)
    content = exported.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(sample: Sample) -> list[Tensor]:
        arrays = {n: value.numpy() for n, value in zip(module.inputs, sample, strict=True)}
        return [torch.from_numpy(np.asarray(output)) for output in session.run(None, arrays)]

    return Portable(content, run)


@torch.no_grad()
def largest_difference(run: Run, module: Module, samples: Sequence[Sample]) -> float:
    """Return the largest output difference from PyTorch, including a batch of one."""
    differences = [
        (ours - theirs).abs().max().double()
        for sample in (*samples, tuple(value[:1] for value in samples[-1]))
        for ours, theirs in zip(_as_tuple(module(*sample)), run(sample), strict=True)
    ]
    return float(torch.stack(differences).max())  # NaN if any difference is NaN


@torch.no_grad()
def report(out: Path, portable: Portable, module: Module, sample: Sample, difference: float) -> str:
    """Return a summary of the exported file: inputs, outputs, accuracy and latency."""
    one = tuple(value[:1] for value in sample)
    what = "one UAV" if isinstance(module, PortableActor) else "one team"
    shapes = zip(module.inputs, (list(value.shape) for value in one), strict=True)
    inputs = ", ".join(f"{name} {shape}" for name, shape in shapes)
    ours, theirs = _median_ms(lambda: portable.run(one)), _median_ms(lambda: module(*one))
    return (
        f"wrote {out}: {len(portable.content) / 1e6:.2f} MB\n"
        f"inputs for {what}: {inputs}\noutputs: {', '.join(module.outputs)}\n"
        f"largest difference to PyTorch: {difference:.1e}\n"
        f"latency of {what}: {ours:.2f} ms (PyTorch: {theirs:.2f} ms)"
    )


def _as_tuple(outputs: Any) -> Sample:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _median_ms(call: Callable[[], object]) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return 1000 * timer.blocked_autorange(min_run_time=_LATENCY_SECONDS).median


@contextmanager
def _quiet_exporters() -> Iterator[None]:
    """Suppress logs, prints and warnings from PyTorch's exporters."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # torch.export prints the traced graph before it fails.
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
