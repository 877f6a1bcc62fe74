"""YAML as plain data: no aliases, no duplicate keys, floats as in YAML 1.2."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node
from yaml.reader import ReaderError

from marl_framework.config.errors import ConfigError
from marl_framework.config.messages import show

_FLOAT_TAG = "tag:yaml.org,2002:float"
_NUMBER_TAGS = ("tag:yaml.org,2002:int", _FLOAT_TAG)
# PyYAML follows YAML 1.1: a number with an exponent requires a point and a sign, as in 1.0e-5.
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")
# 014 is 12 in YAML 1.1 and 14 in YAML 1.2; 1:30 is 90 in YAML 1.1 and text in YAML 1.2.
_AMBIGUOUS = re.compile(r"[-+]?0[0-9_]+$|.*:")


def _error(problem: str, where: Any) -> ConstructorError:
    return ConstructorError(None, None, problem, where.start_mark)


class _Loader(yaml.SafeLoader):
    """Loader that rejects aliases (they can expand a file enormously) and ambiguous values."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        stream: Any = self  # the stubs have no types for the parser's methods
        event = stream.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _error(f"aliases (*{event.anchor}) are not allowed", event)
        return super().compose_node(parent, index)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        if node.tag in _NUMBER_TAGS and _AMBIGUOUS.match(node.value):
            problem = f"the number {show(node.value)} is ambiguous; write it in full"
            raise _error(problem, node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # such as 2024-99-99, 5000 digits, !!int "" or !!timestamp x
            raise _error(f"the value {show(node.value)} cannot be read", node) from error

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping = super().construct_mapping(node, deep)  # rejects unhashable keys
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _error(f"the key {show(key)} is given twice", key_node)
            seen.add(key)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Dumper that writes no aliases and quotes texts that look like floats."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document into plain data; `source` is the file or override.

    Raises ConfigError if the text is invalid; the message names the source and the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        character = show(chr(int(error.character)))
        raise ConfigError(f"{source}: line {number}: invalid character {character}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        problem = error.problem or "cannot be parsed"
        if problem.startswith("but "):  # the context is the first half of the sentence
            problem = f"{error.context}, {problem}"
        broken = "" if isinstance(error, ConstructorError) else "broken YAML: "
        raise ConfigError(f"{source}: {line}{broken}{problem}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be a configuration") from None


def format_yaml(data: Any) -> str:
    """Format data as YAML text that `parse_yaml` reads back to equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
