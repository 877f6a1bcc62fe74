"""The code blocks of README and pages, for the tests that run them."""

import ast
import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_TOP = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")
PAGES = (*(ROOT / name for name in _TOP), *sorted((ROOT / "docs").rglob("*.md")))

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MODULE = re.compile(r"In `(\w+)\.py`:\n\n$")
SHAPE = re.compile(r"[\[(](\d+(?:, ?\d+)*),?[\])]")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    module: str | None
    """Name of the file that the text before a Python block gives it; None for a script."""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def commands(self) -> list[str]:
        """The command lines of a shell block: comments dropped, continued lines joined."""
        lines = self.code.replace("\\\n", " ").splitlines()
        words = (shlex.split(line, comments=True) for line in lines)
        return [shlex.join(command) for command in words if command]


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """All fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return tuple(
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found[1],
            found[2],
            name[1] if (name := _MODULE.search(text, 0, found.start())) else None,
        )
        for found in _BLOCK.finditer(text)
    )


def all_blocks(language: str) -> list[Block]:
    """The blocks of all pages in a language."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def shapes(text: str) -> list[tuple[int, ...]]:
    """The shapes that a text names: `[64, 4]`, `(64,)` or `torch.Size([64])`."""
    return [tuple(int(number) for number in found.split(",")) for found in SHAPE.findall(text)]


def promised_shapes(code: str) -> dict[int, list[tuple[int, ...]]]:
    """Line of each top-level `print` whose last line ends in a comment with shapes, and these."""
    lines, promised = code.splitlines(), {}
    for node in ast.parse(code).body:
        comment = lines[node.end_lineno - 1].rpartition("  # ")[2] if node.end_lineno else ""
        if _is_print(node) and "  # " in lines[node.end_lineno - 1] and shapes(comment):
            promised[node.lineno] = shapes(comment)
    return promised


def run_script(block: Block) -> dict[int, list[tuple[int, ...]]]:
    """Run a Python block; return the shapes that each of its printing lines printed."""
    printed: dict[int, list[tuple[int, ...]]] = {}

    def note(*values: Any, **_: Any) -> None:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print(*values)
        printed[sys._getframe(1).f_lineno] = shapes(text.getvalue())

    exec(compile(block.code, str(block), "exec"), {"print": note, "__name__": "__main__"})
    return printed


def _is_print(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "id", None) == "print"
