"""Loads a part that a params file names by dotted path, such as `my_module.MyTerrain`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from marl_framework.config.errors import ConfigError


def load_part(path: str, key: str, *parameters: str) -> Callable[..., Any]:
    """Return the class or function that a dotted path names.

    Python finds the module as `import` does: in the current folder with `python -m`, beside the
    script that runs, along `PYTHONPATH`, or installed.

    Args:
        path: `module.name`, any number of packages before it.
        key: the key or option that says so, for messages.
        parameters: what it will be called with.

    Raises:
        ConfigError: there is no such module or name, it cannot be imported, or it cannot be
            called so.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{key}: {path}: {module_name} cannot be imported: {error}"
            ) from error
        raise ConfigError(
            f"{key}: {path}: there is no module {error.name}; start in its folder, or put that "
            "into PYTHONPATH"
        ) from error
    except Exception as error:  # whatever a module of the user's does when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{key}: {path}: {module_name} cannot be imported: {reason}") from error
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
    except ValueError:  # built in, and does not tell
        pass
    return part
