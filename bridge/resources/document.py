"""YAML to plain values, with the line of each value for errors.

Only a subset of YAML is accepted: mappings with text keys, sequences, text, numbers, booleans and null. Aliases are
refused (a kilobyte could expand to a gigabyte), and so are language tags. A duplicate key is an error.

Scalars follow YAML 1.2 (core schema, section 10.3.2), while the library follows 1.1: `1:30` is text and not 90, `yes`
and `NO` are text and not booleans. A number with a leading zero is refused: 1.1 reads `010` as 8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from bridge.hidden import hides
from bridge.resources.errors import ConfigurationError, Path, ResourceOrigin, path_text

SOURCE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest YAML file; ten thousand addresses are two megabytes."""

_TAG: Final = "tag:yaml.org,2002:"


@hides("value")
class Document(NamedTuple):
    """One document of a file; it may contain secrets."""

    value: Any
    origin: ResourceOrigin


def documents(data: bytes | str, source: str) -> Iterator[Document | ConfigurationError]:
    """Yield the non-empty documents of one YAML text, and all errors, in order; `source` is its name."""
    if len(data) > SOURCE_BYTES_MAX:
        yield ConfigurationError(source, 0, "", f"larger than {SOURCE_BYTES_MAX} bytes")
        return
    try:
        for node in yaml.compose_all(data, Loader=yaml.SafeLoader):
            plain = _Plain(source)
            value = plain.value(node, ())
            if plain.errors:
                yield from plain.errors
            elif value is not None:  # an empty document between two "---"
                yield Document(value, ResourceOrigin(source, plain.lines))
    except yaml.MarkedYAMLError as why:
        mark = why.problem_mark or why.context_mark
        line = mark.line + 1 if mark is not None else 0
        yield ConfigurationError(source, line, "", f"not YAML: {why.problem or why.context}")
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        yield ConfigurationError(source, 0, "", f"not YAML: {' '.join(str(why).split())}")
    except RecursionError:
        yield ConfigurationError(source, 0, "", "nested too deeply")


_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9]+")
_FLOAT: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def _text(_construct: SafeConstructor, node: yaml.ScalarNode) -> str:
    return str(node.value)


def _integer(construct: SafeConstructor, node: yaml.ScalarNode) -> int | str:
    """Return an integer, or text that is an integer only in YAML 1.1. Raises `_Ambiguous`."""
    if _LEADING_ZERO.fullmatch(node.value):
        raise _Ambiguous(f'{node.value} may be octal: write {int(node.value)}, or "{node.value}" for text')
    return int(construct.construct_yaml_int(node)) if _INTEGER.fullmatch(node.value) else str(node.value)


def _float(construct: SafeConstructor, node: yaml.ScalarNode) -> float | str:
    """Return a number, or text where only YAML 1.1 sees one."""
    return float(construct.construct_yaml_float(node)) if _FLOAT.fullmatch(node.value) else str(node.value)


def _boolean(_construct: SafeConstructor, node: yaml.ScalarNode) -> bool | str:
    """Return a boolean, or text that is a boolean only in YAML 1.1."""
    return _BOOLEANS.get(node.value, str(node.value))


class _Ambiguous(ValueError):
    """A scalar has different meanings in the two versions of YAML; the message shows both notations."""


_SCALARS: Final[dict[str, Callable[[SafeConstructor, yaml.ScalarNode], Any]]] = {
    "null": lambda _construct, _node: None,
    "bool": _boolean,
    "int": _integer,
    "float": _float,
    "str": _text,
    "timestamp": _text,  # the format has no dates
    "value": _text,
    "merge": _text,
}


class _Plain:
    """Converts the nodes of one document to plain values, and records the line of every path."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.errors: list[ConfigurationError] = []
        self._seen: set[int] = set()
        self._construct = SafeConstructor()

    def value(self, node: yaml.Node | None, path: Path) -> Any:
        """Return the plain value of a node; None after an error."""
        if node is None:
            return None
        # a value has the line of its key: a mapping starts on the line below its key
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._seen:
            return self._complain(node, path, "YAML aliases (*name) are not supported; write the value out")
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode):
            raise TypeError(node)
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, path, "a key must be text")
                continue
            key = key_node.value
            if key in result:
                first = self.lines[(*path, key)]
                self._complain(key_node, (*path, key), f'duplicate key "{key}"; first in line {first}')
                continue
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, (*path, key))
        return result

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        kind = node.tag.removeprefix(_TAG)
        read = _SCALARS.get(kind)
        if read is None:
            return self._complain(node, path, f"the tag {node.tag} is not supported")
        try:
            return read(self._construct, node)
        except _Ambiguous as why:
            return self._complain(node, path, str(why))
        except (ValueError, KeyError, ConstructorError):
            return self._complain(node, path, f'"{node.value}" is not a valid {kind}')

    def _complain(self, node: yaml.Node, path: Path, message: str) -> None:
        line = node.start_mark.line + 1
        self.errors.append(ConfigurationError(self.source, line, path_text(path), message))
