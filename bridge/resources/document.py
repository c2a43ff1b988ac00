"""YAML to plain values, with the line of everything: errors point where a person wrote.

Only the plain part of YAML is taken: mappings with text keys, sequences, and text, numbers, booleans and null. No
aliases (a document of a kilobyte could unfold into a gigabyte), no tags of a language. A key written twice is an error,
not the last one's victory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from bridge.hidden import hides
from bridge.resources.errors import ConfigurationError, Origin, Path, path_text

SOURCE_BYTES_MAX: Final = 4 * 1024 * 1024
"""One YAML file; ten thousand addresses are two megabytes."""

_TAG: Final = "tag:yaml.org,2002:"


@hides("value")
class Document(NamedTuple):
    """One document of a file, which may hold secrets."""

    value: Any
    origin: Origin


def documents(data: bytes | str, source: str) -> Iterator[Document | ConfigurationError]:
    """The documents of one YAML text that have something in them, and every error, in order; `source` is its name."""
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
                yield Document(value, Origin(source, plain.lines))
    except yaml.MarkedYAMLError as why:
        mark = why.problem_mark or why.context_mark
        line = mark.line + 1 if mark is not None else 0
        yield ConfigurationError(source, line, "", f"not YAML: {why.problem or why.context}")
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        yield ConfigurationError(source, 0, "", f"not YAML: {' '.join(str(why).split())}")
    except RecursionError:
        yield ConfigurationError(source, 0, "", "nested too deeply")


def _text(_construct: SafeConstructor, node: yaml.ScalarNode) -> str:
    return str(node.value)


_SCALARS: Final[dict[str, Callable[[SafeConstructor, yaml.ScalarNode], Any]]] = {
    "null": lambda _construct, _node: None,
    "bool": SafeConstructor.construct_yaml_bool,
    "int": SafeConstructor.construct_yaml_int,
    "float": SafeConstructor.construct_yaml_float,
    "str": _text,
    "timestamp": _text,  # nothing of the format is a date, so what looks like one is text
    "value": _text,
    "merge": _text,
}


class _Plain:
    """Turns the nodes of one document into plain values, and notes the line of every path."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.errors: list[ConfigurationError] = []
        self._seen: set[int] = set()
        self._construct = SafeConstructor()

    def value(self, node: yaml.Node | None, path: Path) -> Any:
        """The plain value of a node; None for what an error was noted about."""
        if node is None:
            return None
        # What keys point at keeps the key's line: a mapping begins on the line below its key.
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
                self._complain(key_node, (*path, key), f'"{key}" is written twice; first in line {first}')
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
        except (ValueError, KeyError, ConstructorError):
            return self._complain(node, path, f'"{node.value}" is no {kind}')

    def _complain(self, node: yaml.Node, path: Path, message: str) -> None:
        line = node.start_mark.line + 1
        self.errors.append(ConfigurationError(self.source, line, path_text(path), message))
