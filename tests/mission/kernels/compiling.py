"""Triton kernels without a GPU: interpreted, compiled for GPUs, and what the machine code needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

ARCHITECTURES = (80, 89, 90)
_MOST_REGISTERS = 128
_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int64: "*i64",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}

Launch = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""A kernel's name and function, its arguments and its constants."""


def interpreted(*names: str) -> None:
    """Run `interpreted_NAME.py` in a process in which Triton interprets; all of it must pass."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    old = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"  # Triton 3.6 makes them
    tests = [str(Path(__file__).with_name(f"interpreted_{name}.py")) for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", old, *tests],
        cwd=Path(__file__).parents[3],
        env={**kept, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), "none may be skipped"


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


def check_machine_code(launch: Launch, architecture: int, folder: Path) -> None:
    """Compile a launch: it reads and writes memory, spills no register and needs no atomics."""
    compiled = _compile(launch, architecture)
    registers, stack, local = _usage(compiled, folder)
    where = f"{launch[0]} on sm_{architecture}: {registers} registers, {stack} B, {local} B"
    assert registers <= _MOST_REGISTERS, where
    assert (stack, local) == (0, 0), where
    operations = re.findall(r"^\s+(?:@!?%\w+ )?(\w+)\.(\w+)", compiled.asm["ptx"], re.MULTILINE)
    assert {("ld", "global"), ("st", "global")} <= set(operations), where
    assert not {"atom", "red"} & {name for name, _ in operations}, where


def _compile(launch: Launch, architecture: int) -> Any:
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
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def _usage(compiled: Any, folder: Path) -> tuple[int, int, int]:
    """Return registers, and bytes of stack and of local memory."""
    import triton

    file = folder / "kernel.cubin"
    file.write_bytes(compiled.asm["cubin"])
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [program, "-res-usage", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, text
    registers, stack, local = map(int, found.groups())
    return registers, stack, local
