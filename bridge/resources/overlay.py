"""Resources of two who decide: a program's own, and over them those that somebody else manages.

A resource that is managed is in force in place of the own one of that kind and name. Of a kind there is one of, fields
are in force: those that are managed over the own ones, mapping by mapping, lists as a whole; its name and labels stay.
Taking what is managed away leaves what the program has itself, as it was.
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
    """By what a resource is found in the other layer: its kind alone where there is one of it."""
    kind = kinds.get(resource.kind)
    return (resource.kind, "") if kind is not None and kind.single else resource.key


class Overlay:
    """What is managed, as a layer over own resources."""

    def __init__(self, kinds: ResourceKinds, managed: Sequence[Resource] = (), kept: Collection[Key] = ()) -> None:
        """`kept`: keys (of `key_in`) of own resources that are in force in place of what is managed."""
        self._kinds = kinds
        self.managed = {key_in(kinds, resource): resource for resource in managed}
        self._kept = frozenset(kept)

    def keeps(self, key: Key) -> bool:
        """The own resource is in force."""
        return key in self._kept

    def over(self, own: Sequence[Resource]) -> tuple[list[Resource], list[ConfigurationError]]:
        """What is in force, in the order of kinds and names; and what is wrong where both are in one resource."""
        found: dict[Key, Resource] = {}
        errors: list[ConfigurationError] = []
        more: list[Resource] = []
        """Those defined twice, which a check of the whole finds."""
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
    """As a JSON merge patch (RFC 7386), which takes nothing away."""
    if not isinstance(own, dict) or not isinstance(managed, dict):
        return managed
    return {**own, **{key: _merged(own.get(key), value) for key, value in managed.items()}}
