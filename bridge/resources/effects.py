"""Effect of a change on a running program, as its fields declare it: live fields change, others wait for a restart."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec

from bridge.resources.declaration import fields_of, part_in
from bridge.resources.errors import Path, ResourceOrigin, path_text
from bridge.resources.fields import Effect, ResourcePart
from bridge.resources.resource import Metadata, Resource, ResourceKind, ResourceKinds


def in_force(kinds: ResourceKinds, started: Sequence[Resource], applied: Sequence[Resource]) -> list[Resource]:
    """Return the resources in force when a program that was started with some resources applies others: these, but
    with the started values of restart fields. So a running program never mixes old and new values of such fields."""
    kept = {kind.name: _retained(kind, _only(kind, started), _only(kind, applied)) for kind in _at_start(kinds)}
    return [*kept.values(), *(resource for resource in applied if resource.kind not in kept)]


def restarts(kinds: ResourceKinds, before: Sequence[Resource], after: Sequence[Resource]) -> list[str]:
    """Return one sentence for each change that takes effect after a restart."""
    places = [
        f"{kind.name} {path_text(path)}"
        for kind in _at_start(kinds)
        for path in _of_resource(kind, _only(kind, before), _only(kind, after))
    ]
    return [f"{place} changed: takes effect after a restart" for place in places]


def _at_start(kinds: ResourceKinds) -> list[ResourceKind]:
    """Return the single kinds with restart fields."""
    return [kind for kind in kinds if kind.single and (kind.renamed is Effect.RESTART or _has_restarts(kind.spec))]


@functools.cache
def _has_restarts(part: type[ResourcePart]) -> bool:
    """Return True when a field of the part, or of a part in it, needs a restart."""
    inner = (part_in(field.type) for field in fields_of(part))
    return any(field.effect is Effect.RESTART for field in fields_of(part)) or any(
        _has_restarts(each) for each in inner if each is not None
    )


def _only(kind: ResourceKind, resources: Sequence[Resource]) -> Resource:
    """Return the resource of a single kind, or an empty one."""
    for resource in resources:
        if resource.kind == kind.name:
            return resource
    return Resource(kind.name, Metadata(name=kind.default_name), kind.spec(), {}, ResourceOrigin(""))


def _retained(kind: ResourceKind, started: Resource, applied: Resource) -> Resource:
    metadata = started.metadata if kind.renamed is Effect.RESTART else applied.metadata
    return msgspec.structs.replace(applied, metadata=metadata, spec=_part_retained(started.spec, applied.spec))


def _part_retained(started: ResourcePart, applied: ResourcePart) -> ResourcePart:
    old, new = msgspec.structs.asdict(started), msgspec.structs.asdict(applied)
    kept = {}
    for field in fields_of(type(applied)):
        was, now = old[field.attribute], new[field.attribute]
        if isinstance(was, ResourcePart) and isinstance(now, ResourcePart):
            kept[field.attribute] = _part_retained(was, now)
        elif field.effect is Effect.RESTART:
            kept[field.attribute] = was
    return msgspec.structs.replace(applied, **kept)


def _of_resource(kind: ResourceKind, before: Resource, after: Resource) -> Iterator[Path]:
    if kind.renamed is Effect.RESTART and before.name != after.name:
        yield ("metadata", "name")
    yield from _of_part(before.spec, after.spec, ("spec",))


def _of_part(before: ResourcePart, after: ResourcePart, path: Path) -> Iterator[Path]:
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    for field in fields_of(type(after)):
        was, now = old[field.attribute], new[field.attribute]
        if isinstance(was, ResourcePart) and isinstance(now, ResourcePart):
            yield from _of_part(was, now, (*path, *field.path))
        elif field.effect is Effect.RESTART and was != now:
            yield (*path, *field.path)
