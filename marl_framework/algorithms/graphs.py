"""CUDA graphs of whole episodes and updates: recorded once, then replayed with one call."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from marl_framework.algorithms.ranks import number_of_ranks
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.parts import has_custom_parts
from marl_framework.device import resolve_precision, triton_lacks

WARM_UP = 2
"""Number of eager calls before recording."""

Result = TypeVar("Result")


class CudaBackend:
    """Recorder of CUDA graphs; uses a separate stream, as PyTorch requires."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)

    def eager(self, function: Callable[[], Result]) -> Result:
        """Run a function eagerly on the stream that `capture` uses."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = function()
        current.wait_stream(self._stream)
        return result

    def capture(
        self, function: Callable[[], Result], generator: torch.Generator | None
    ) -> tuple[Result, Callable[[], None]]:
        """Record a function without running its kernels; return its result and a replay function.

        If recording fails (RuntimeError), the generators' states are unchanged.
        """
        gc.collect()  # a graph that is destroyed during a recording invalidates it
        graph = torch.cuda.CUDAGraph()
        # A recording always includes the device's default generator.
        generators = [torch.cuda.default_generators[self._device.index]]
        if generator is not None:
            graph.register_generator_state(generator)
            generators.append(generator)
        before = [each.get_state() for each in generators]
        try:
            # The outer context restores the stream even if recording fails.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = function()
        except RuntimeError:
            for each, state in zip(generators, before, strict=True):  # may still be recording
                fresh = torch.Generator(self._device)
                fresh.set_state(state)
                each.graphsafe_set_state(fresh)
            raise
        return result, graph.replay


@dataclass
class _Recording:
    owner: object
    generator: torch.Generator | None
    number: Tensor
    calls: int = 0
    result: Any = None
    replay: Callable[[], None] | None = None


class Graphs:
    """Runner of functions as CUDA graphs: twice eagerly, then recorded, then replayed.

    Tensors must keep their addresses, all random numbers must come from one generator, and nothing
    may be copied to the host. If a recording fails, a warning follows and all runs are eager.
    """

    def __init__(self, device: torch.device, backend: CudaBackend | None = None) -> None:
        self._device = device
        self._backend = CudaBackend(device) if backend is None else backend
        self._recordings: dict[Hashable, _Recording] = {}
        self._works = True

    def run(
        self,
        key: Hashable,
        owner: object,
        function: Callable[[Tensor], Result],
        number: float,
        generator: torch.Generator | None,
    ) -> Result:
        """Run a function; return its result, which the next call with the key may overwrite.

        `number` is passed to `function` as a scalar tensor. `key` identifies the function and its
        shapes. A new `owner` of the tensors that the function reads, or a new `generator` of its
        random numbers, causes a new recording.
        """
        known = self._recordings.get(key)
        if known is None or known.owner is not owner or known.generator is not generator:
            # A float64 scalar gives the same bits as a Python number.
            scalar = torch.zeros((), dtype=torch.float64, device=self._device)
            known = self._recordings[key] = _Recording(owner, generator, scalar)
        known.number.fill_(number)
        bound = partial(function, known.number)
        if self._works and known.replay is None and known.calls >= WARM_UP:
            self._record(known, bound)
        if known.replay is None:
            known.calls += 1
            return self._backend.eager(bound)
        known.replay()
        result: Result = known.result
        return result

    def forget(self) -> None:
        """Drop all recordings; call this before replacing recorded tensors."""
        self._recordings.clear()

    def _record(self, known: _Recording, function: Callable[[], Result]) -> None:
        try:
            known.result, known.replay = self._backend.capture(function, known.generator)
        except RuntimeError as error:
            self._works = False
            self.forget()  # earlier recordings use the generator's previous state
            # A failed recording ends with a second error, whose context is the cause.
            cause = error.__context__
            reason = str(cause if isinstance(cause, RuntimeError) else error).partition("\n")[0]
            message = f"compute.cuda_graphs: disabled after a failed recording: {reason}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def make_graphs(config: Config, device: torch.device) -> Graphs | None:
    """Return the CUDA graphs of a training; None if there are none, see `uses_graphs`."""
    return Graphs(device) if uses_graphs(config, device) else None


def uses_graphs(config: Config, device: torch.device) -> bool:
    """Return whether a training is recorded as CUDA graphs.

    With `auto` it is if a GPU runs Triton kernels, nothing else prevents it, and no part is custom.

    Raises ConfigError if graphs are on, and another setting does not support them.
    """
    choice = config.compute.cuda_graphs
    if not choice or device.type != "cuda":
        return False
    reason = _obstacle(config, device)
    if choice == "auto":
        return reason is None and triton_lacks(device) is None and not has_custom_parts(config)
    if reason is not None:
        raise ConfigError(
            f"compute.cuda_graphs: not supported with {reason}, or compute.cuda_graphs=false"
        )
    return True


def _obstacle(config: Config, device: torch.device) -> str | None:
    """Return what does not work with CUDA graphs, and how to change it; None if all works."""
    if number_of_ranks() > 1:
        return "several ranks; train on one rank"
    if resolve_precision(config.compute.precision, device) == torch.float16:
        return "float16; use compute.precision=bfloat16 or float32"
    if config.learning.teacher.weight:
        return "learning.teacher; set learning.teacher.weight=0"
    return None
