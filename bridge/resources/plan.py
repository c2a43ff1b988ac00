"""Result of applying or deleting resources: plain values in and out, nothing is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from bridge.hidden import hides
from bridge.resources import schema
from bridge.resources.errors import ConfigurationError, ConfigurationRejected, ResourceOrigin
from bridge.resources.overlay import Overlay
from bridge.resources.resource import Resource, ResourceKinds

Documents = list[dict[str, Any]]
"""Resources as written, in the order of their kinds and names."""


@hides("before", "after")
class ResourceChange(msgspec.Struct, frozen=True):
    """Change of one resource by `apply` or `delete`; `before` or `after` is None when it does not exist."""

    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def verb(self) -> str:
        """The change as ``created``, ``changed``, ``unchanged`` or ``deleted``."""
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        return "unchanged" if self.before == self.after else "changed"


def load(kinds: ResourceKinds, documents: Iterable[dict[str, Any]], source: str, overlay: Overlay) -> list[Resource]:
    """Return the resources in force: the documents kept in `source`, and the overlay over them. Raises
    `ConfigurationRejected`."""
    return _whole(kinds, documents, (), source, overlay)


def applied(
    kinds: ResourceKinds, documents: Documents, resources: Sequence[Resource], source: str, layers: Sequence[Overlay]
) -> tuple[Documents, list[ResourceChange]]:
    """Add these resources, or replace those of the same kind and name; return the documents, and one change each.

    Raises `ConfigurationRejected` when the result would not be valid under each of the layers.
    """
    new = {resource.key: resource for resource in resources}
    old = {key_of(document): document for document in documents}
    for overlay in layers:
        _whole(kinds, [document for key, document in old.items() if key not in new], resources, source, overlay)
    changes = [ResourceChange(*key, old.get(key), resource.document) for key, resource in new.items()]
    merged = {**old, **{key: resource.document for key, resource in new.items()}}
    order = kinds.names
    return [merged[key] for key in sorted(merged, key=lambda key: (order.index(key[0]), key[1]))], changes


def deleted(
    kinds: ResourceKinds,
    documents: Documents,
    keys: Collection[tuple[str, str]],
    source: str,
    layers: Sequence[Overlay],
) -> tuple[Documents, list[ResourceChange]]:
    """Delete the resources with these (kind, name); return the other documents, and one change for each deleted one.

    Raises `ConfigurationRejected` when the rest would not be valid (for example a forwarder without its connector).
    """
    kept = [document for document in documents if key_of(document) not in keys]
    changes = [ResourceChange(*key_of(document), document, None) for document in documents if key_of(document) in keys]
    for overlay in layers:
        _whole(kinds, kept, (), source, overlay)
    return kept, changes


def key_of(document: dict[str, Any]) -> tuple[str, str]:
    """Return (kind, name) of a document."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return (str(document.get("kind")), str(name))


def _whole(
    kinds: ResourceKinds, documents: Iterable[dict[str, Any]], more: Sequence[Resource], source: str, overlay: Overlay
) -> list[Resource]:
    resources: list[Resource] = []
    errors: list[ConfigurationError] = []
    for document in documents:
        built = schema.build(kinds, document, ResourceOrigin(source))
        if isinstance(built, Resource):
            resources.append(built)
        else:
            errors += built
    resources, merging = overlay.over([*resources, *more])
    errors += merging
    errors += kinds.validate(resources)
    if errors:
        raise ConfigurationRejected(errors)
    return resources
