"""Files for ONNX Runtime or PyTorch that hold a trained team, and how well they match it."""

from __future__ import annotations

import io
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.exporting.portable import PortableActor, PortableTeam
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import RandomPlanner

FACTS = "mission"
"""Metadata key of the mission's data in an ONNX file, see `mission_facts`."""
FACTS_FILE = "mission.json"
"""Name of the mission's data in a `torch.export` file."""

_MISSIONS = 5  # flown to compare the exported team with PyTorch
_LATENCY_SECONDS = 0.5  # duration of a latency measurement

Module = PortableActor | PortableTeam
Arrays = dict[str, np.ndarray[Any, Any]]
Run = Callable[[Arrays], list[np.ndarray[Any, Any]]]


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
    split = {"sensor": {"simulation": {"kinds": ["split"]}}}  # a measured map may be missing
    flown = with_changes(config, split, "an exported team")
    env = MissionEnvironment(flown, _MISSIONS, "cpu", "test")
    builder = ObservationBuilder(config, env.lattice, env.camera)
    planner = RandomPlanner(env.lattice)
    state = env.reset(env.draw_reset())
    starts = state.positions.clone()
    samples: list[tuple[Tensor, ...]] = []
    for _ in range(min(env.episode_length, 15)):
        actions, masks, *_ = planner.act(state, env.generator)
        if isinstance(module, PortableActor):
            samples.append((builder.actor(state).flatten(0, 1), masks.flatten(0, 1)))
        else:
            given = vars(state) | {"starts": starts}
            samples.append(tuple(given[name].clone() for name in module.inputs))
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

    Raises:
        ConfigError: the network of one's own cannot be exported.
    """
    count = torch.export.Dim("count")
    text = json.dumps(facts)
    with _quiet(), torch.no_grad():
        try:
            program = torch.export.export(
                module, samples[0], dynamic_shapes=tuple({0: count} for _ in samples[0])
            )
        except Exception as error:  # of PyTorch's own kinds, or what the network raises
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"torch.export cannot follow the actor, {type(module.actor).__name__}: {reason}; "
                "its path must not depend on values or on how many observations there are. "
                "--format weights needs no export"
            ) from error
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
    """Suppress what PyTorch's exporters log, print and warn of."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # torch.export prints what it has traced before it fails.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
