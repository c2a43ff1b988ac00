"""Parse files to resources of the kinds of a program."""

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
    """Return the resources of one YAML text, in order. Raises `ConfigurationRejected` with all errors in it."""
    resources, errors = _parse(kinds, data, source)
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def read(kinds: ResourceKinds, names: Sequence[str]) -> list[Resource]:
    """Return the resources of files, folders (``*.yaml`` and ``*.yml``, in order of name) and ``-`` (standard input).

    Raises `ConfigurationRejected` with all errors of all files, including unreadable files.
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
    """Read a complete configuration, and also check the rules between resources. Raises `ConfigurationRejected`."""
    resources = read(kinds, names)
    errors = kinds.validate(resources)
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def to_yaml(document: Any) -> str:
    """Return a document as YAML that `parse` reads back equal."""
    text = str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))
    if yaml.safe_load(text) != document:  # the library does not escape some line separators of Unicode
        text = str(yaml.safe_dump(document, sort_keys=False, width=120))
    return text


def _sources(name: str) -> list[tuple[str, bytes | ConfigurationError]]:
    """Return (displayed name, content or error) for all files of a name on the command line."""
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
