"""CUDA graphs as far as a CPU has them: operators on a tape, which replay without their Python.

A recorded operator runs again on the very tensors that it was recorded with and writes into the
memory that it wrote then. Whatever Python computed meanwhile stays as it was, as in a CUDA graph:
numbers, shapes, which tensors a name stands for.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.helpers.operator_costs import tensors_in
from benchmarks.helpers.pretend_gpu import HostReadError, needs_host

aten = torch.ops.aten


class Tape(TorchDispatchMode):
    """Records operators while it is active; `rewind` undoes what they did."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if needs_host(packet, args) or packet is aten.lift_fresh:  # a copy from the host
            raise HostReadError(f"{func} needs the host")
        arguments = func._schema.arguments
        for argument, value in [*zip(arguments, args, strict=False), *self._named(func, kwargs)]:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_in(value):
                    self._keep(tensor.untyped_storage())
        result = func(*args, **kwargs)
        fresh = all(value.alias_info is None for value in func._schema.returns)
        self.operators.append((func, args, kwargs, tensors_in(result) if fresh else []))
        return result

    @staticmethod
    def _named(func: Any, kwargs: Any) -> list[tuple[Any, Any]]:
        return [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]

    def _keep(self, storage: torch.UntypedStorage) -> None:
        if storage.data_ptr() not in self._before:
            self._before[storage.data_ptr()] = (storage, storage.clone())

    def rewind(self) -> None:
        """Bring back all memory that was written."""
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        """Run all operators again."""
        with torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, outputs in self.operators:
                found = tensors_in(func(*args, **kwargs))
                for output, new in zip(outputs, found if outputs else [], strict=True):
                    output.copy_(new)


class TapeBackend:
    """Stands in for `algorithms.graphs.CudaBackend`.

    Attributes:
        captures, replays: how many there were.
    """

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def eager(self, function: Callable[[], Any]) -> Any:
        return function()

    def capture(
        self, function: Callable[[], Any], generator: torch.Generator | None
    ) -> tuple[Any, Callable[[], None]]:
        used = torch.default_generator if generator is None else generator
        state = used.get_state()
        tape = Tape()
        try:
            with tape:
                result = function()
        finally:  # a recording runs nothing
            tape.rewind()
            used.set_state(state)
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return result, replay
