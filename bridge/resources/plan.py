"""What applying or deleting resources makes of those that are applied: plain values in and out, nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from bridge.hidden import hides
from bridge.resources import schema
from bridge.resources.errors import ConfigurationError, ConfigurationRejected, Origin
from bridge.resources.resource import Kinds, Resource

Documents = list[dict[str, Any]]
"""Resources as they were written, in the order of their kinds and names."""

Over = Callable[[Sequence[Resource]], tuple[list[Resource], list[ConfigurationError]]]
"""What is in force of these resources where somebody else decides too (`bridge.resources.overlay`), and the errors."""


def _alone(resources: Sequence[Resource]) -> tuple[list[Resource], list[ConfigurationError]]:
    """Nobody else decides."""
    return list(resources), []


@hides("before", "after")
class Change(msgspec.Struct, frozen=True):
    """What one `apply` or `delete` does to one resource: `before` or `after` is None where there is none."""

    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def verb(self) -> str:
        """``created``, ``changed``, ``unchanged`` or ``deleted``."""
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        return "unchanged" if self.before == self.after else "changed"


def load(kinds: Kinds, documents: Iterable[dict[str, Any]], source: str, over: Over = _alone) -> list[Resource]:
    """The resources in force where these documents are kept in `source`. Raises `ConfigurationRejected`."""
    return _whole(kinds, documents, (), source, over)


def applied(
    kinds: Kinds, documents: Documents, resources: Sequence[Resource], source: str, layers: Sequence[Over] = (_alone,)
) -> tuple[Documents, list[Change]]:
    """With these resources added, or in place of those of the same kind and name; one change a resource given.

    Raises `ConfigurationRejected` when the whole would not be valid under each of the layers.
    """
    new = {resource.key: resource for resource in resources}
    old = {key_of(document): document for document in documents}
    for over in layers:
        _whole(kinds, [document for key, document in old.items() if key not in new], resources, source, over)
    changes = [Change(*key, old.get(key), resource.document) for key, resource in new.items()]
    merged = {**old, **{key: resource.document for key, resource in new.items()}}
    order = kinds.names
    return [merged[key] for key in sorted(merged, key=lambda key: (order.index(key[0]), key[1]))], changes


def deleted(
    kinds: Kinds,
    documents: Documents,
    keys: Collection[tuple[str, str]],
    source: str,
    layers: Sequence[Over] = (_alone,),
) -> tuple[Documents, list[Change]]:
    """Without the resources that have these (kind, name); what is not there is left out of the changes.

    Raises `ConfigurationRejected` when the rest would not be valid (for one: a forwarder may need the connector).
    """
    kept = [document for document in documents if key_of(document) not in keys]
    changes = [Change(*key_of(document), document, None) for document in documents if key_of(document) in keys]
    for over in layers:
        _whole(kinds, kept, (), source, over)
    return kept, changes


def key_of(document: dict[str, Any]) -> tuple[str, str]:
    """(kind, name) of a document."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return (str(document.get("kind")), str(name))


def _whole(
    kinds: Kinds, documents: Iterable[dict[str, Any]], more: Sequence[Resource], source: str, over: Over
) -> list[Resource]:
    resources: list[Resource] = []
    errors: list[ConfigurationError] = []
    for document in documents:
        built = schema.build(kinds, document, Origin(source))
        if isinstance(built, Resource):
            resources.append(built)
        else:
            errors += built
    resources, merging = over([*resources, *more])
    errors += merging
    errors += kinds.validate(resources)
    if errors:
        raise ConfigurationRejected(errors)
    return resources
