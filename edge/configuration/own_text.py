"""A gateway's own configuration as one YAML text for an editor, in which secrets are hidden.

A hidden value that is left as it is keeps its secret. So a browser never has the secrets, and may change the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from bridge.resources import schema
from bridge.resources.diff import HIDDEN, masked
from bridge.resources.document import Document, documents
from bridge.resources.errors import ConfigurationError, ConfigurationRejected, Path, ResourceOrigin, path_text
from bridge.resources.parse import to_yaml
from bridge.resources.plan import Documents, key_of
from bridge.resources.resource import Resource
from edge.configuration.kinds import KINDS

SOURCE: Final = "configuration"
"""Name of the text in errors."""
_SEPARATOR: Final = "---\n"


def shown_text(resources: Documents) -> str:
    """Return the resources as YAML without secrets."""
    return _SEPARATOR.join(to_yaml(masked(KINDS, document)) for document in resources)


def parse_own(text: str, before: Documents) -> list[Resource]:
    """Return the resources of a text, with the secrets of `before`. Raises `ConfigurationRejected` with all errors."""
    known = {key_of(document): document for document in before}
    resources: list[Resource] = []
    errors: list[ConfigurationError] = []
    for found in documents(text, SOURCE):
        built = _built(found, known) if isinstance(found, Document) else [found]
        if isinstance(built, Resource):
            resources.append(built)
        else:
            errors += built
    errors += _repeated(resources)
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def resources_in(kept: Documents) -> list[Resource]:
    """Return the resources of documents with their secrets. Raises `ConfigurationRejected` with all errors."""
    return parse_own(_SEPARATOR.join(to_yaml(document) for document in kept), kept)


def _built(found: Document, known: dict[tuple[str, str], dict[str, Any]]) -> Resource | Sequence[ConfigurationError]:
    value, missing = found.value, list[Path]()
    if isinstance(value, dict):
        value = _revealed(value, known.get(key_of(value)), (), missing)
    if missing:
        return [_unknown_secret(found.origin, path) for path in missing]
    return schema.build(KINDS, value, found.origin)


def _revealed(value: Any, before: Any, path: Path, missing: list[Path]) -> Any:
    """Return a value with its secrets; add the paths of unknown ones to `missing`."""
    if value == HIDDEN:
        if before is None or before == HIDDEN or isinstance(before, dict | list):
            missing.append(path)
        return before
    if isinstance(value, dict):
        old = before if isinstance(before, dict) else {}
        return {key: _revealed(item, old.get(key), (*path, key), missing) for key, item in value.items()}
    if isinstance(value, list):
        named = _by_name(before)
        return [
            _revealed(item, _like(item, place, before, named), (*path, place), missing)
            for place, item in enumerate(value)
        ]
    return value


def _by_name(items: Any) -> dict[Any, Any]:
    """Return the mappings of a list that have a name: they may have changed places."""
    return {each["name"]: each for each in items or () if isinstance(each, dict) and isinstance(each.get("name"), str)}


def _like(item: Any, place: int, before: Any, named: dict[Any, Any]) -> Any:
    """Return the item of a list before a change that this one continues."""
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        return named.get(item["name"])
    return before[place] if isinstance(before, list) and place < len(before) else None


def _unknown_secret(origin: ResourceOrigin, path: Path) -> ConfigurationError:
    words = "this value is hidden, and there is none to keep: write the value"
    return ConfigurationError(origin.source, origin.line(path), path_text(path), words)


def _repeated(resources: Sequence[Resource]) -> Iterator[ConfigurationError]:
    """Yield an error for each resource with the kind and name of an earlier one."""
    seen = set[tuple[str, str]]()
    for resource in resources:
        if resource.key in seen:
            words = f"{resource.kind} {resource.name} is there twice"
            yield ConfigurationError(SOURCE, resource.origin.line(("metadata", "name")), "metadata.name", words)
        seen.add(resource.key)
