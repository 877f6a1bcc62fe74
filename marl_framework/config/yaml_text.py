"""YAML as plain data: no tags, no aliases, no key twice, floats as YAML 1.2 writes them."""

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
# PyYAML follows YAML 1.1, where a number with an exponent needs a point and a sign: 1.0e-5.
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")
# 014 is twelve in YAML 1.1 and fourteen in 1.2; 1:30 is ninety in 1.1 and a text in 1.2.
_ODD_NUMBER = re.compile(r"[-+]?0[0-9_]+$|.*:")


def _refusal(problem: str, mark: Any) -> ConstructorError:
    return ConstructorError(None, None, problem, mark)


class _Loader(yaml.SafeLoader):
    """Refuses what a configuration does not need and an attacker would."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        stream: Any = self  # the stubs leave the parser's methods untyped
        event = stream.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(f"aliases (*{event.anchor}) are not allowed", event.start_mark)
        if event.tag is not None:
            raise _refusal(f"tags ({_short_tag(event.tag)}) are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        if node.tag in _NUMBER_TAGS and _ODD_NUMBER.match(node.value):
            problem = f"the number {show(node.value)} can be read in two ways; write it in full"
            raise _refusal(problem, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError) as error:  # 2024-99-99, or 5000 digits
            raise _refusal(
                f"the value {show(node.value)} cannot be read", node.start_mark
            ) from error

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refusal("a key must be a word or a number", key_node.start_mark)
            if key in seen:
                raise _refusal(f"the key {show(key)} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def refuse(self, node: Node) -> Any:
        """Answer to the plain scalars `<<` and `=`, which YAML 1.1 sets aside."""
        raise _refusal(f"{node.value!r} needs quotes", node.start_mark)


class _Dumper(yaml.SafeDumper):
    """Writes what the loader reads: equal texts quoted, nothing shared by anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))
_Loader.add_constructor(None, _Loader.refuse)


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")[:60]


def parse_yaml(text: str, source: str) -> Any:
    """Plain data of one YAML document.

    Args:
        text: the document.
        source: its file or override, for messages.

    Raises:
        ConfigError: names the source and the line of the first thing that is wrong.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{source}: line {line}: the character {show(chr(int(error.character)))} "
            f"is not allowed in YAML"
        ) from None
    except ConstructorError as error:
        raise ConfigError(f"{source}: {_line(error)}{error.problem}") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "cannot be parsed"
        if problem.startswith("but "):  # the first half of the sentence is the context
            problem = f"{getattr(error, 'context', '')}, {problem}"
        raise ConfigError(f"{source}: {_line(error)}broken YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be a configuration") from None


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f"line {mark.line + 1}: " if mark else ""


def format_yaml(data: Any) -> str:
    """YAML text of plain data that `parse_yaml` reads back to equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
