"""Runs whole episodes and updates as CUDA graphs: recorded once, then replayed by one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from marl_framework.algorithms.ranks import number_of_ranks
from marl_framework.config.errors import ConfigError
from marl_framework.config.learning import ComputeConfig
from marl_framework.device import resolve_precision

WARM_UP = 2
"""Number of eager calls before the recorded one."""

Result = TypeVar("Result")


class CudaBackend:
    """Records CUDA graphs of a GPU on its own stream, as PyTorch requires."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def eager(self, function: Callable[[], Result]) -> Result:
        """Run a function where `capture` would record it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = function()
        current.wait_stream(self._stream)
        return result

    def capture(
        self, function: Callable[[], Result], generator: torch.Generator | None
    ) -> tuple[Result, Callable[[], None]]:
        """Record a function without running its kernels; return its result and the replay.

        A RuntimeError, if it cannot be recorded, leaves the generator's state unchanged.
        """
        graph, before = torch.cuda.CUDAGraph(), None
        if generator is not None:
            before = generator.get_state()
            graph.register_generator_state(generator)
        try:
            # The outer context leaves the stream; a failed recording does not.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = function()
        except RuntimeError:
            if generator is not None and before is not None:  # its state may still be recording
                fresh = torch.Generator(self._device)
                fresh.set_state(before)
                generator.graphsafe_set_state(fresh)
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
    """Runs functions as CUDA graphs: eagerly twice, then recorded, then replayed.

    Tensors must keep their addresses, all random numbers must come from one generator, and nothing
    may be read back to the host. If a recording fails, everything runs eagerly, after a warning.
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
        """Return the result of a function; the next call with the same key may overwrite it.

        Args:
            key: name of the function and its shapes.
            owner: owner of the tensors that it reads; another one is recorded again.
            function: takes `number` as a scalar tensor.
            number: value that changes from call to call.
            generator: source of all random numbers; another one is recorded again.
        """
        known = self._recordings.get(key)
        if known is None or known.owner is not owner or known.generator is not generator:
            # In double precision it gives the same bits as a Python number.
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
        """Drop all recordings, before tensors in them are replaced."""
        self._recordings.clear()

    def _record(self, known: _Recording, function: Callable[[], Result]) -> None:
        try:
            known.result, known.replay = self._backend.capture(function, known.generator)
        except RuntimeError as error:
            self._works = False
            self.forget()  # earlier recordings draw from the generator's former state
            # PyTorch raises its own error at the end of a failed recording, over the cause.
            cause = error.__context__
            reason = str(cause if isinstance(cause, RuntimeError) else error).partition("\n")[0]
            message = f"compute.cuda_graphs: off from now on, a recording failed: {reason}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def is_recorded(compute: ComputeConfig, device: torch.device) -> bool:
    """Return whether episodes and updates run as CUDA graphs: switched on, and on a GPU."""
    return compute.cuda_graphs and device.type == "cuda"


def make_graphs(compute: ComputeConfig, device: torch.device) -> Graphs | None:
    """Return the CUDA graphs of a training; None if they are off or there is no GPU.

    Raises:
        ConfigError: another setting cannot be recorded.
    """
    if not is_recorded(compute, device):
        return None
    if number_of_ranks() > 1:
        reason = "several ranks; train on one rank"
    elif compute.gradient_checkpointing:
        reason = "compute.gradient_checkpointing; set it to false"
    elif resolve_precision(compute.precision, device) == torch.float16:
        reason = "float16; use compute.precision=bfloat16 or float32"
    else:
        return Graphs(device)
    raise ConfigError(
        f"compute.cuda_graphs: does not work with {reason}, or compute.cuda_graphs=false"
    )
