"""Overlay: resources that another party manages, over a program's own resources.

A managed resource replaces the own one of its kind and name. For single kinds, managed fields are merged over the own
ones, mapping by mapping, lists as a whole; name and labels stay. Removing the managed resources restores the own ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from bridge.resources import schema
from bridge.resources.errors import ConfigurationError
from bridge.resources.resource import Resource, ResourceKinds

Key = tuple[str, str]
"""(kind, name) of a resource."""


def key_in(kinds: ResourceKinds, resource: Resource) -> Key:
    """Return the key of a resource in the other layer: only its kind for a single kind."""
    kind = kinds.get(resource.kind)
    return (resource.kind, "") if kind is not None and kind.single else resource.key


class Overlay:
    """Managed resources as a layer over own ones."""

    def __init__(self, kinds: ResourceKinds, managed: Sequence[Resource] = (), kept: Collection[Key] = ()) -> None:
        """`kept`: keys (of `key_in`) of own resources that override the managed ones."""
        self._kinds = kinds
        self.managed = {key_in(kinds, resource): resource for resource in managed}
        self._kept = frozenset(kept)

    def keeps(self, key: Key) -> bool:
        """Return True when the own resource overrides the managed one."""
        return key in self._kept

    def over(self, own: Sequence[Resource]) -> tuple[list[Resource], list[ConfigurationError]]:
        """Return the resources in force, in the order of kinds and names, and the errors of merged resources."""
        found: dict[Key, Resource] = {}
        errors: list[ConfigurationError] = []
        more: list[Resource] = []
        """Duplicates, which `ResourceKinds.validate` reports."""
        for resource in own:
            key = key_in(self._kinds, resource)
            if key in found:
                more.append(resource)
            found.setdefault(key, resource)
        for key, resource in self.managed.items():
            mine = found.get(key)
            if mine is None:
                found[key] = resource
            elif key not in self._kept:
                both = self._both(mine, resource) if key[1] == "" else resource
                if isinstance(both, Resource):
                    found[key] = both
                else:
                    errors += both
        order = self._kinds.names
        whole = sorted(found.values(), key=lambda each: (order.index(each.kind), each.name))
        return [*whole, *more], errors

    def _both(self, mine: Resource, managed: Resource) -> Resource | list[ConfigurationError]:
        spec = _merged(mine.document.get("spec") or {}, managed.document.get("spec") or {})
        return schema.build(self._kinds, {**mine.document, "spec": spec}, mine.origin)


def _merged(own: Any, managed: Any) -> Any:
    """Merge like a JSON merge patch (RFC 7386), but without deletions."""
    if not isinstance(own, dict) or not isinstance(managed, dict):
        return managed
    return {**own, **{key: _merged(own.get(key), value) for key, value in managed.items()}}
