"""Compiles Triton kernels for GPUs that need not be here, and reads what the machine code needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

ARCHITECTURES = (80, 89, 90)
_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int64: "*i64",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}

Launch = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""A kernel's name and function, its arguments and its constants."""


@contextmanager
def recorded(*kernels: tuple[ModuleType, str]) -> Iterator[list[Launch]]:
    """Record launches of a module's kernels instead of running them."""
    found: list[Launch] = []

    class Recorder:
        def __init__(self, name: str, kernel: Any) -> None:
            self._name, self._kernel = name, kernel
            self.arg_names = kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any, **constants: Any) -> None:
                found.append((self._name, self._kernel, arguments, constants))

            return launch

    with pytest.MonkeyPatch.context() as patch:
        for module, name in kernels:
            patch.setattr(module, name, Recorder(name, getattr(module, name)))
        yield found


def usage(launch: Launch, architecture: int, folder: Path) -> dict[str, Any]:
    """Compile a launch; return `registers`, bytes of `stack` and `local`, PTX `operations`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _, kernel, arguments, constants = launch
    names = kernel.arg_names
    values = {name: constants[name] for name in names if name in constants}
    if "FAST" in values:
        values["FAST"] = True  # as on every GPU
    given = dict(zip(names, arguments, strict=False))
    assert set(given) | set(values) == set(names)
    types = {n: _POINTERS[v.dtype] if isinstance(v, Tensor) else "i32" for n, v in given.items()}
    aligned = [name for name, value in given.items() if isinstance(value, Tensor)]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in values.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {name: value for name, value in constants.items() if name not in names}
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    file = folder / "kernel.cubin"
    file.write_bytes(made.asm["cubin"])
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [program, "-res-usage", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, text
    registers, stack, local = map(int, found.groups())
    operations = set(re.findall(r"^\s+(?:@!?%p\d+ )?(\w+)", made.asm["ptx"], re.MULTILINE))
    return {"registers": registers, "stack": stack, "local": local, "operations": operations}
