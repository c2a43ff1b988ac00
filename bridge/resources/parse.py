"""Files to resources: what `document` reads of them, by the kinds a program knows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from bridge.resources import schema
from bridge.resources.document import SOURCE_BYTES_MAX, Document, documents
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.resource import Resource, ResourceKinds

STDIN: Final = "-"
SUFFIXES: Final = (".yaml", ".yml")


def parse(kinds: ResourceKinds, data: bytes | str, source: str) -> list[Resource]:
    """The resources of one YAML text, in order. Raises `ConfigurationRejected` with every error in it."""
    resources, errors = _parse(kinds, data, source)
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def read(kinds: ResourceKinds, names: Sequence[str]) -> list[Resource]:
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
            good, bad = _parse(kinds, content, source)
            resources += good
            errors += bad
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def read_whole(kinds: ResourceKinds, names: Sequence[str]) -> list[Resource]:
    """As `read`, of what is all there is: it has to hold together, too. Raises `ConfigurationRejected`."""
    resources = read(kinds, names)
    errors = kinds.validate(resources)
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


def _parse(kinds: ResourceKinds, data: bytes | str, source: str) -> tuple[list[Resource], list[ConfigurationError]]:
    resources: list[Resource] = []
    errors: list[ConfigurationError] = []
    for found in documents(data, source):
        built = schema.build(kinds, found.value, found.origin) if isinstance(found, Document) else [found]
        if isinstance(built, Resource):
            resources.append(built)
        else:
            errors += built
    return resources, errors
