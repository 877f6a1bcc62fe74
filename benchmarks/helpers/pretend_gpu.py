"""A simulated GPU: tensors claim to be on `cuda:0`, and the CPU computes their values or none.

With values, every number equals the CPU's, bit for bit. Without values, tensors have only shapes;
then kernels, moved bytes and allocated bytes of large programs can be counted.

The simulation enforces the rules of a GPU: no operator takes tensors of both devices (except CPU
scalars), a generator serves only its own device, and a read by the host is an error unless allowed.
Streams, events and CUDA graphs are not simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map

from benchmarks.helpers.operator_costs import (
    CONVOLUTIONS,
    OperatorCost,
    has_channels_last,
    operator_cost,
    tensors_in,
    with_channels_last,
)
from marl_framework.algorithms import actor_critic
from marl_framework.device import Lack
from marl_framework.kernels import versions
from marl_framework.networks import convolutional, layers
from marl_framework.observations import symmetry

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")

aten = torch.ops.aten

# Operators whose result shape or value the host needs, so that the host waits for the GPU.
_READS = {
    aten._local_scalar_dense,
    aten._unique2,
    aten.equal,
    aten.is_nonzero,
    aten.masked_select,
    aten.nonzero,
    aten.unique_dim,
}
_TO_HOST = {Tensor.cpu, Tensor.numpy, Tensor.tolist}
_MASKED = {aten.index, aten.index_put, aten.index_put_}


class HostReadError(RuntimeError):
    """The host reads a value from the GPU, and so waits for the GPU."""


def needs_host(operator: Any, arguments: Any) -> bool:
    """Return whether the host needs an operator's result, or its shape."""
    if operator in _MASKED:
        return any(tensor.dtype == torch.bool for tensor in tensors_in(arguments[1]))
    return operator in _READS


class MixedDevicesError(RuntimeError):
    """An operator gets tensors on different devices."""


class Generator(torch.Generator):
    """CPU generator that claims to be on another device."""

    _where: torch.device

    def __new__(cls, device: torch.device | str = "cpu") -> Generator:
        """Create a CPU generator."""
        self = super().__new__(cls)
        self._where = torch.device(device)
        return self

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Do nothing; `__new__` sets up the generator."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Claimed device."""
        return self._where


class GpuTensor(Tensor):
    """Tensor that claims to be on `cuda:0` and wraps a tensor on the CPU or the meta device.

    PyTorch's C++ code sees a CPU tensor, so that autograd and autocast work.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> GpuTensor:
        """Wrap a tensor."""
        wrapper: GpuTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=CPU,
            requires_grad=held.requires_grad,
        )
        return wrapper

    def __init__(self, held: Tensor) -> None:
        """Store the wrapped tensor."""
        self.held = held

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Return the shape without reading values."""
        return f"GpuTensor({tuple(self.shape)}, {self.dtype})"

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raise an error: `pretend_gpu` handles operators before they get here."""
        raise RuntimeError(f"{func}: requires pretend_gpu; call it inside that context")


class PretendGpu:
    """Executes and counts operators on the simulated GPU.

    Args:
        values: whether tensors have values, not only shapes.
        costs: functions that return a custom operator's cost for its arguments, by name.
        twins: functions that compute custom operators, by name; by default the operator itself.

    Attributes:
        kernels, bytes: counts by stage (see `stage`). A kernel reads each input and writes each
            output once; expanded elements count once.
        has_values: whether tensors have values.
        peak: peak of the allocated bytes, without gaps of the allocator and workspaces of
            libraries.
        operators: number of executed operators.
        uploads: number of tensors copied from the host.
        twins: see the arguments.
    """

    def __init__(
        self,
        values: bool = True,
        costs: dict[str, Callable[[tuple[Any, ...]], OperatorCost]] | None = None,
        twins: dict[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.kernels: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.peak = 0
        self.operators = 0
        self.uploads = 0
        self.twins = twins or {}
        self.has_values = values
        self._inside = CPU if values else torch.device("meta")
        self._costs = costs or {}
        self._stage = ""
        self._making = False
        self._may_read = False
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._held = 0

    @contextmanager
    def reads_allowed(self) -> Iterator[None]:
        """Allow reads by the host inside this context."""
        before, self._may_read = self._may_read, True
        try:
            yield
        finally:
            self._may_read = before

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count kernels and bytes under `name` inside this context."""
        before = self._stage
        self._stage = name
        try:
            yield
        finally:
            self._stage = before

    def watch(self, owner: object, method: str, stage: str, within: Collection[str]) -> None:
        """Count calls of a method under `stage` if the current stage is in `within`."""
        original = getattr(owner, method)

        def call_in_stage(*args: Any, **kwargs: Any) -> Any:
            if self._stage not in within:
                return original(*args, **kwargs)
            with self.stage(stage):
                return original(*args, **kwargs)

        setattr(owner, method, call_in_stage)

    @property
    def alive(self) -> int:
        """Bytes of all tensors that are still allocated."""
        for key in [key for key, (ref, _) in self._storages.items() if ref.expired()]:
            self._held -= self._storages.pop(key)[1]
        return self._held

    def restart_peak(self) -> int:
        """Return `peak`, and reset it to the currently allocated bytes."""
        peak, self.peak = self.peak, self.alive
        return peak

    # Calls of the host ----------------------------------------------------------------------

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function of PyTorch's Python API, which may move tensors between devices."""
        generator = kwargs.get("generator")
        if func in _TO_HOST and isinstance(args[0], GpuTensor):
            return func(self._read(args[0], func), *args[1:], **kwargs)
        if func in (Tensor.to, Tensor.cuda):
            return self._transfer(func, args, kwargs)
        on_gpu = _is_gpu(kwargs.get("device"))
        if on_gpu:
            kwargs = {**kwargs, "device": CPU}
        if generator is not None:
            kwargs = self._check_generator(func, args, kwargs, on_gpu)
        if not on_gpu:
            return func(*args, **kwargs)
        before, self._making = self._making, True
        try:
            return func(*args, **kwargs)
        finally:
            self._making = before

    def _transfer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call `Tensor.to` or `Tensor.cuda`."""
        tensor = args[0]
        to = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.device | str)]
        others = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, Tensor)]
        to += [other.device for other in others]
        to_gpu = func is Tensor.cuda or (_is_gpu(to[0]) if to else isinstance(tensor, GpuTensor))
        dtypes = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.dtype)]
        dtypes += [other.dtype for other in others]
        if not to_gpu and isinstance(tensor, GpuTensor):
            tensor = self._read(tensor, func)
        if to_gpu and not isinstance(tensor, GpuTensor):
            with torch.no_grad():
                tensor = self._wrap(tensor.to(self._inside))
                self.uploads += 1
        order = kwargs.get("memory_format") or torch.preserve_format
        return Tensor.to(tensor, (dtypes or [tensor.dtype])[0], memory_format=order)

    def _read(self, tensor: GpuTensor, func: Any) -> Tensor:
        if not self._may_read:
            raise HostReadError(f"{getattr(func, '__name__', func)}: the host reads from cuda:0")
        return tensor.held.detach()

    def _check_generator(
        self, func: Any, args: Any, kwargs: dict[str, Any], on_gpu: bool
    ) -> dict[str, Any]:
        generator = kwargs["generator"]
        target = GPU if on_gpu else CPU
        if args and isinstance(args[0], Tensor):
            target = args[0].device
        if generator.device.type != target.type:
            raise MixedDevicesError(f"{func}: generator of {generator.device} for {target}")
        return kwargs if self._inside == CPU else {**kwargs, "generator": None}

    # Operators of the GPU -------------------------------------------------------------------

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator and count its cost; raise an error if it breaks a rule of GPUs."""
        tensors = tensors_in((args, kwargs))
        on_gpu = [t for t in tensors if isinstance(t, GpuTensor)]
        packet = func.overloadpacket
        made = self._making and not on_gpu
        if func.namespace == "prim" or not (on_gpu or made):
            return func(*args, **kwargs)
        self.operators += 1
        upload = packet is aten.copy_ and isinstance(args[0], GpuTensor)
        for tensor in tensors:
            if isinstance(tensor, GpuTensor) or tensor.dim() == 0 or upload or made:
                continue
            if packet is aten.copy_:
                self._read(args[1], func)
            else:
                raise MixedDevicesError(f"{func}: tensors on cuda:0 and cpu")
        if needs_host(packet, args) and not self._may_read:
            raise HostReadError(f"{func}: the host reads from cuda:0")
        inner, given = tree_map(_unwrap, args), tree_map(_unwrap, kwargs)
        self.uploads += upload and not isinstance(args[1], GpuTensor)
        self.uploads += made and packet is aten.lift_fresh
        if self._inside != CPU:
            if "device" in given:
                given["device"] = self._inside
            if packet is aten.lift_fresh:
                inner = (inner[0].to(self._inside),)
        name = str(packet)
        out = self.twins.get(name, func)(*inner, **given)
        if func in CONVOLUTIONS and self._inside != CPU and any(map(has_channels_last, tensors)):
            out = tree_map(with_channels_last, out)  # the meta device forgets the layout
        out = tree_map(lambda t: GpuTensor(t) if isinstance(t, Tensor) else t, out)
        self._count(func, name, args, kwargs, tensors, tensors_in(out))
        return return_and_correct_aliasing(func, args, kwargs, out)

    def _wrap(self, tensor: Tensor) -> GpuTensor:
        wrapped = GpuTensor(tensor)
        self._track([wrapped])
        return wrapped

    def _count(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], after: list[Any]
    ) -> None:
        self._track(after)
        if name in self._costs:
            kernels, moved = self._costs[name](args)
        else:
            kernels, moved = operator_cost(func, args, before, after)
        self.kernels[self._stage] += kernels
        self.bytes[self._stage] += round(moved)

    def _track(self, tensors: list[Any]) -> None:
        """Register new storages."""
        for tensor in tensors:
            storage = tensor.held.untyped_storage()
            key = storage._cdata
            if key in self._storages:
                if not self._storages[key][0].expired():
                    continue
                self._held -= self._storages.pop(key)[1]  # a new storage reuses the address
            self._storages[key] = (StorageWeakRef(storage), storage.nbytes())
            self._held += storage.nbytes()
        if self._held > self.peak:
            self.peak = max(self.peak, self.alive)


class _Functions(TorchFunctionMode):
    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._gpu.call(func, args, kwargs or {})


class _Operators(TorchDispatchMode):
    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._gpu.run(func, args, kwargs or {})


@contextmanager
def pretend_gpu(gpu: PretendGpu, triton: bool = False) -> Iterator[PretendGpu]:
    """Simulate a GPU of compute capability 9.0, `cuda:0`.

    Args:
        gpu: executes the operators.
        triton: whether missions use Triton kernels; with values, the kernels need `gpu.twins`.
    """

    class Autocast(torch.amp.autocast):
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu", *args, **kwargs)

    autocasts, autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    linear_on_gpu = layers.is_linear
    group = torch._C._group_tensors_by_device_and_dtype

    def group_on_gpu(*args: Any) -> Any:
        return {(GPU, dtype): tensors for (_, dtype), tensors in group(*args).items()}

    def has_triton(device: torch.device) -> bool:
        return triton and device.type == "cuda"

    def is_linear(*tensors: Tensor) -> bool:
        return linear_on_gpu(*tensors) and not gpu.has_values

    def uses_triton(_: Any, device: torch.device) -> bool:
        return has_triton(device) and not gpu.has_values

    replaced = (
        (torch, "Generator", Generator),
        (torch, "autocast", Autocast),
        (torch.amp, "autocast", Autocast),
        (torch, "is_autocast_enabled", lambda *_: autocasts("cpu")),
        (torch, "get_autocast_dtype", lambda *_: autocast_dtype("cpu")),
        (torch._C, "_group_tensors_by_device_and_dtype", group_on_gpu),
        (_foreach_utils, "_foreach_supported_types", [Tensor, GpuTensor]),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda, "get_device_capability", lambda *_, **__: (9, 0)),
        (torch.cuda, "synchronize", lambda *_, **__: None),
        (versions, "triton_lacks", lambda device: None if has_triton(device) else Lack("", "")),
        # With values, hand-derived gradients, linear layers and reordered convolutions would differ
        # in some bits.
        (actor_critic, "uses_triton", uses_triton),
        (convolutional, "uses_triton", uses_triton),
        (layers, "is_linear", is_linear),
        (symmetry, "uses_triton", uses_triton),
    )
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, before)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(_Operators(gpu))
        stack.enter_context(_Functions(gpu))
        yield gpu


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _unwrap(value: Any) -> Any:
    return value.held if isinstance(value, GpuTensor) else value
