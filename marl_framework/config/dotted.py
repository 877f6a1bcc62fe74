"""Loads a part that a params file names by dotted path, such as `my_module.MyTerrain`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from marl_framework.config.errors import ConfigError


def load_part(path: str, key: str, *parameters: str) -> Callable[..., Any]:
    """Return the class or function of a dotted path.

    Its module is found as `import` does: in the current folder with `python -m`, next to the
    running script, along `PYTHONPATH`, or installed.

    Args:
        path: `module.name`, with any number of packages before it.
        key: key or option that names it, for messages.
        parameters: names of the arguments that it must accept.

    Raises:
        ConfigError: the module or name does not exist, cannot be imported, or cannot be called
            with these arguments.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a custom module can raise anything when it is imported
        problem = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            problem = f"there is no module {missing}; start in its folder, or add it to PYTHONPATH"
        raise ConfigError(f"{key}: {path}: {problem}") from error
    part = getattr(module, name, None)
    if part is None:
        nearest = difflib.get_close_matches(name, vars(module), 1, 0)
        hint = f"; the nearest name there is {nearest[0]}" if nearest else ""
        raise ConfigError(f"{key}: {path}: module {module_name} has no {name}{hint}")
    if not callable(part):
        raise ConfigError(f"{key}: {path}: must be a class or a function, not {part!r:.60}")
    try:
        inspect.signature(part).bind(*parameters)
    except TypeError:
        called = f"{name}({', '.join(parameters)})"
        raise ConfigError(f"{key}: {path}: must be callable as {called}") from None
    except ValueError:  # a built-in without a signature
        pass
    return part
