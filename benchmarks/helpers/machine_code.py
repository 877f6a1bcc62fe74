"""Machine code of Triton kernels, compiled without a GPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

ARCHITECTURES = (80, 89, 90)
"""Ten times the compute capability of A100; of RTX 4090 and L40; of H100 and H200."""

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int64: "*i64",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}


@dataclass(frozen=True)
class Launch:
    """Launch of a Triton kernel with its arguments."""

    name: str
    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    @property
    def variant(self) -> str:
        """Name of the kernel and its compile-time flags that are set."""
        names = self.kernel.arg_names
        flags = {name: value for name, value in self.constants.items() if name in names}
        for group in self.constants.values():
            flags |= getattr(group, "_asdict", dict)()
        return " ".join((self.name, *(k.lower() for k, value in flags.items() if value is True)))


@dataclass(frozen=True)
class MachineCode:
    """Resources of a multiprocessor that a kernel needs."""

    registers: int
    """Number of registers per thread."""
    spilled: int
    """Bytes per thread outside registers: on the stack or in local memory."""
    shared: int
    """Bytes of shared memory per program."""
    operations: frozenset[tuple[str, str]]
    """PTX operations with their first modifier, such as (`ld`, `global`)."""


@contextmanager
def recorded(*kernels: tuple[ModuleType, str]) -> Iterator[list[Launch]]:
    """Record the launches of kernels, given by module and name, instead of running them."""
    launches: list[Launch] = []

    class Recorder:
        def __init__(self, name: str, kernel: Any) -> None:
            self._name, self._kernel = name, kernel
            self.arg_names = kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any, **constants: Any) -> None:
                launches.append(Launch(self._name, self._kernel, arguments, constants))

            return launch

    with ExitStack() as stack:
        for module, name in kernels:
            recorder = Recorder(name, getattr(module, name))
            stack.enter_context(patch.object(module, name, recorder))
        yield launches


def compile_for(launch: Launch, architecture: int) -> MachineCode:
    """Compile a launch for an architecture, see `ARCHITECTURES`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, constants = launch.kernel.arg_names, launch.constants
    values = {name: constants[name] for name in names if name in constants}
    given = dict(zip(names, launch.arguments, strict=False))
    if set(given) | set(values) != set(names):
        raise ValueError(f"{launch.name}: launched without {set(names) - set(given)}")
    tuples = {name: value for name, value in given.items() if isinstance(value, tuple)}
    aligned: list[tuple[int, ...]]
    aligned = [(names.index(n),) for n, value in given.items() if isinstance(value, Tensor)]
    aligned += [(names.index(n), k) for n, value in tuples.items() for k in range(len(value))]
    source = ASTSource(
        fn=launch.kernel,
        signature={n: type_of(given[n]) if n in given else "constexpr" for n in names},
        constexprs={(names.index(name),): value for name, value in values.items()},
        attrs={path: [["tt.divisibility", 16]] for path in aligned},
    )
    options = {name: value for name, value in constants.items() if name not in names}
    code = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    registers, stack, local = _read_usage(code.asm["cubin"])
    operations = re.findall(r"^\s+(?:@!?%\w+ )?(\w+)\.(\w+)", code.asm["ptx"], re.MULTILINE)
    return MachineCode(registers, stack + local, code.metadata.shared, frozenset(operations))


def type_of(value: Any) -> Any:
    """Return Triton's name for an argument's type; the argument is a tensor, number or tuple."""
    if isinstance(value, tuple):
        return type(value)(*map(type_of, value))
    if isinstance(value, Tensor):
        return _POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _read_usage(cubin: bytes) -> tuple[int, int, int]:
    """Return the numbers of registers, stack bytes and local bytes per thread."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(program), "-res-usage", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if match is None:
        raise ValueError(f"cuobjdump printed no usage: {text}")
    registers, stack, local = map(int, match.groups())
    return registers, stack, local
