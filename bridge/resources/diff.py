"""Changes as a unified diff of YAML, without secrets."""

from __future__ import annotations

import difflib
from typing import Any, Final

from bridge.resources.declaration import Field, Tree, part_in, tree_of
from bridge.resources.parse import to_yaml
from bridge.resources.plan import ResourceChange
from bridge.resources.resource import ResourceKinds

HIDDEN: Final = "********"


def masked(kinds: ResourceKinds, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the values that its parts hide (`bridge.hidden.hides`)."""
    kind = kinds.get(document.get("kind"))
    return document if kind is None else {**document, "spec": _mapping(document.get("spec"), tree_of(kind.spec))}


def _mapping(value: Any, tree: Tree) -> Any:
    return {key: _value(item, tree.get(key)) for key, item in value.items()} if isinstance(value, dict) else value


def _value(value: Any, field: Field | Tree | None) -> Any:
    if field is None or value is None:
        return value
    if isinstance(field, dict):
        return _mapping(value, field)
    if field.secret:
        return HIDDEN
    part = part_in(field.type)
    if part is None:
        return value
    if isinstance(value, list):
        return [_mapping(item, tree_of(part)) for item in value]
    return _mapping(value, tree_of(part))


def unified(kinds: ResourceKinds, change: ResourceChange) -> str:
    """Return the diff of one resource."""
    before, after = (to_yaml(masked(kinds, document)) if document else "" for document in (change.before, change.after))
    name = f"{change.kind}/{change.name}"
    if before == after:
        return f"{name}: only a secret changes\n"
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name} (applied)", f"{name} (given)", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
