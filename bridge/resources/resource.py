"""Resources and their kinds, in the form of Kubernetes: apiVersion, kind, metadata, spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from bridge.hidden import hides
from bridge.resources.errors import ConfigurationError, Path, ResourceOrigin, path_text
from bridge.resources.fields import Effect, Kept, Live, Name, ResourcePart

OWN_VERSION: Final = "waypost/v1"

Errors = Iterator[ConfigurationError]
S = TypeVar("S")


class Metadata(ResourcePart, frozen=True, kw_only=True):
    """Metadata of a resource. An `Address` may be called ``<space>.<name>``, as in EnMasse."""

    name: Live[Name]
    """Name: letters and digits, and between them dots, dashes, underscores."""
    labels: Kept[dict[str, str]] = msgspec.field(default_factory=dict)
    """Labels, for people and their tools."""
    annotations: Kept[dict[str, str]] = msgspec.field(default_factory=dict)
    """Annotations, for people and their tools."""


class ResourceKind(msgspec.Struct, frozen=True):
    """A kind of resource: its name, the type of its spec, the words that `get` accepts, EnMasse's apiVersion if any."""

    name: str
    spec: type[ResourcePart]
    words: tuple[str, ...]
    enmasse_version: str = ""
    single: bool = False
    """True when at most one resource of this kind may exist."""
    default_name: str = ""
    """Default name of a resource; empty: the name is required."""
    renamed: Effect = Effect.LIVE
    """Time at which a new name takes effect."""

    @property
    def versions(self) -> tuple[str, ...]:
        """Every `apiVersion` that a resource of this kind may have."""
        return (OWN_VERSION, self.enmasse_version) if self.enmasse_version else (OWN_VERSION,)


@hides("document")
class Resource(msgspec.Struct, frozen=True):
    """One resource: as written (`document`), and parsed (`metadata`, `spec`)."""

    kind: str
    metadata: Metadata
    spec: ResourcePart
    document: dict[str, Any]
    origin: ResourceOrigin

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def key(self) -> tuple[str, str]:
        """(kind, name), which identifies the resource for `apply` and `delete`."""
        return (self.kind, self.name)


Check = Callable[[Sequence[Resource]], Errors]
"""Checks all resources together and yields the errors between them; raises nothing."""


class ResourceKinds:
    """The kinds of one program, in the order of display, and the rules between their resources."""

    def __init__(self, kinds: Iterable[ResourceKind], checks: Iterable[Check] = ()) -> None:
        """Duplicate resources, and several of a single kind, are errors in every program."""
        self._kinds = {kind.name: kind for kind in kinds}
        self._checks = (_duplicates, self._single, *checks)

    def __iter__(self) -> Iterator[ResourceKind]:
        return iter(self._kinds.values())

    def get(self, name: object) -> ResourceKind | None:
        """Return the kind with this name, if there is one."""
        return self._kinds.get(name) if isinstance(name, str) else None

    @property
    def names(self) -> list[str]:
        """Names of the kinds, in order."""
        return list(self._kinds)

    def validate(self, resources: Sequence[Resource]) -> list[ConfigurationError]:
        """Return all errors between these resources, in the order of their files."""
        return sorted({error for check in self._checks for error in check(resources)})

    def _single(self, resources: Sequence[Resource]) -> Errors:
        for kind in self:
            found = [resource for resource in resources if resource.kind == kind.name] if kind.single else []
            for resource in found[1:]:
                if resource.name != found[0].name:  # otherwise reported by `_duplicates`
                    message = f"there is at most one {kind.name}, and {found[0].name} already exists"
                    yield error_at(resource, (), message)


def of_kind(resources: Iterable[Resource], type_: type[S]) -> Iterator[tuple[Resource, S]]:
    """Yield (resource, spec) of one kind, given as the type of its spec."""
    for resource in resources:
        if isinstance(resource.spec, type_):
            yield resource, resource.spec


def error_at(resource: Resource, path: Path, message: str) -> ConfigurationError:
    """Return an error for one path of a valid resource."""
    shown = f"{resource.kind} {resource.name}: {path_text(path)}" if path else f"{resource.kind} {resource.name}"
    return ConfigurationError(resource.origin.source, resource.origin.line(path), shown, message)


def _duplicates(resources: Sequence[Resource]) -> Errors:
    first: dict[tuple[str, str], Resource] = {}
    for resource in resources:
        other = first.setdefault(resource.key, resource)
        if other is not resource:
            where = f"{other.origin.source}:{other.origin.line(())}"
            yield error_at(resource, ("metadata", "name"), f"is defined twice; first defined at {where}")
