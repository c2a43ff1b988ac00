"""YAML to resources, with the line of everything: errors point where a person wrote.

Only the plain part of YAML is taken: mappings with text keys, sequences, and text, numbers, booleans and null. No
aliases (a document of a kilobyte could unfold into a gigabyte), no tags of a language. A key written twice is an error,
not the last one's victory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from edge.appliance.configuration import schema
from edge.appliance.configuration.resources import (
    ConfigurationError,
    ConfigurationRejected,
    Origin,
    Resource,
    path_text,
)

SOURCE_BYTES_MAX: Final = 4 * 1024 * 1024
"""One YAML file; ten thousand addresses are two megabytes."""
STDIN: Final = "-"
SUFFIXES: Final = (".yaml", ".yml")

_TAG: Final = "tag:yaml.org,2002:"


def parse(data: bytes | str, source: str) -> list[Resource]:
    """The resources of one YAML text, in order. Raises `ConfigurationRejected` with every error in it."""
    resources, errors = _parse(data, source)
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def read(names: Sequence[str]) -> list[Resource]:
    """The resources of files, folders (their ``*.yaml`` and ``*.yml``, in order of name) and ``-`` (standard input).

    Raises `ConfigurationRejected` with every error of every file, unreadable ones included.
    """
    resources: list[Resource] = []
    errors: list[ConfigurationError] = []
    for name in names:
        for source, content in _sources(name):
            if isinstance(content, ConfigurationError):
                errors.append(content)
                continue
            good, bad = _parse(content, source)
            resources += good
            errors += bad
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def to_yaml(document: Any) -> str:
    """One document as YAML that `parse` reads back equal."""
    text = str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))
    if yaml.safe_load(text) != document:  # the library writes some line separators of Unicode as they are
        text = str(yaml.safe_dump(document, sort_keys=False, width=120))
    return text


def _sources(name: str) -> list[tuple[str, bytes | ConfigurationError]]:
    """(shown name, content or the error) of everything a name on the command line stands for."""
    if name == STDIN:
        return [("stdin", sys.stdin.buffer.read(SOURCE_BYTES_MAX + 1))]
    path = Path(name)
    try:
        if not path.is_dir():
            return [(name, _read_file(path))]
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            return [(name, ConfigurationError(name, 0, "", "no *.yaml or *.yml in this folder"))]
        return [(str(file), _read_file(file)) for file in files]
    except OSError as why:
        return [(name, ConfigurationError(name, 0, "", f"cannot be read: {why.strerror or why}"))]


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SOURCE_BYTES_MAX + 1)


def _parse(data: bytes | str, source: str) -> tuple[list[Resource], list[ConfigurationError]]:
    resources: list[Resource] = []
    errors: list[ConfigurationError] = []
    if len(data) > SOURCE_BYTES_MAX:
        return [], [ConfigurationError(source, 0, "", f"larger than {SOURCE_BYTES_MAX} bytes")]
    try:
        for node in yaml.compose_all(data, Loader=yaml.SafeLoader):
            plain = _Plain(source)
            document = plain.value(node, ())
            if plain.errors:
                errors += plain.errors
            elif document is not None:  # an empty document between two "---"
                built = schema.build(document, Origin(source, plain.lines))
                if isinstance(built, Resource):
                    resources.append(built)
                else:
                    errors += built
    except yaml.MarkedYAMLError as why:
        mark = why.problem_mark or why.context_mark
        line = mark.line + 1 if mark is not None else 0
        errors.append(ConfigurationError(source, line, "", f"not YAML: {why.problem or why.context}"))
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        errors.append(ConfigurationError(source, 0, "", f"not YAML: {' '.join(str(why).split())}"))
    except RecursionError:
        errors.append(ConfigurationError(source, 0, "", "nested too deeply"))
    return resources, errors


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

    def value(self, node: yaml.Node | None, path: schema.Path) -> Any:
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

    def _mapping(self, node: yaml.MappingNode, path: schema.Path) -> dict[str, Any]:
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

    def _scalar(self, node: yaml.ScalarNode, path: schema.Path) -> Any:
        kind = node.tag.removeprefix(_TAG)
        read = _SCALARS.get(kind)
        if read is None:
            return self._complain(node, path, f"the tag {node.tag} is not supported")
        try:
            return read(self._construct, node)
        except (ValueError, KeyError, ConstructorError):
            return self._complain(node, path, f'"{node.value}" is no {kind}')

    def _complain(self, node: yaml.Node, path: schema.Path, message: str) -> None:
        line = node.start_mark.line + 1
        self.errors.append(ConfigurationError(self.source, line, path_text(path), message))
