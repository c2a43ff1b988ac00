"""The hub's part of a gateway's configuration as an overlay, and the settings that a hub must not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bridge.resources import schema
from bridge.resources.errors import ConfigurationError, ConfigurationRejected, ResourceOrigin
from bridge.resources.overlay import Key, Overlay, key_in
from bridge.resources.resource import Resource, error_at
from edge.configuration.hub_versions import HubVersions, Version
from edge.configuration.kinds import KINDS
from edge.configuration.resources import GatewaySpec, MessagingUserSpec


def resources_of(version: Version) -> list[Resource]:
    """Return the resources of a version. Raises `ConfigurationRejected`."""
    resources: list[Resource] = []
    errors: list[ConfigurationError] = []
    origin = ResourceOrigin(f"the hub's configuration, version {version.number}")
    for document in version.resources:
        built = schema.build(KINDS, document, origin)
        if isinstance(built, Resource):
            resources.append(built)
        else:
            errors += built
    errors += hub_faults(resources)
    if errors:
        raise ConfigurationRejected(errors)
    return resources


def hub_faults(resources: Iterable[Resource]) -> Iterator[ConfigurationError]:
    """Yield an error for each resource that a hub must not change: users, and the gateway's identity."""
    for resource in resources:
        spec = resource.spec
        if isinstance(spec, MessagingUserSpec):
            words = "a hub does not manage users and their secrets: use waypost apply at the gateway"
            yield error_at(resource, (), words)
        if isinstance(spec, GatewaySpec) and spec.hub is not None:
            for field, value in (("gateway", spec.hub.gateway), ("tls", spec.hub.tls)):
                if value is not None:
                    words = "the gateway's identity is set by its enrolment: use waypost enrol at the gateway"
                    yield error_at(resource, ("spec", "hub", field), words)


def layer(version: Version | None, kept: Sequence[str] = ()) -> Overlay:
    """Return a version as an overlay over the gateway's own resources. Raises `ConfigurationRejected`."""
    return Overlay(KINDS, resources_of(version) if version is not None else (), [_key(name) for name in kept])


def layers(versions: HubVersions) -> list[Overlay]:
    """Return the overlays that may be in force soon: the current one, and the one after a rollback of the trial. Local
    changes must be valid with each."""
    in_force = layer(versions.in_force, versions.in_force_kept)
    return [in_force, layer(versions.confirmed, versions.kept)] if versions.trial is not None else [in_force]


def name_of(resource: Resource) -> str:
    """Return Kind/name."""
    return f"{resource.kind}/{resource.name}"


def managed(overlay: Overlay, resource: Resource) -> Resource | None:
    """Return the hub's resource that replaces this one of the gateway; None if it is in force, at least in part."""
    key = key_in(KINDS, resource)
    return None if not key[1] or overlay.keeps(key) else overlay.managed.get(key)


def not_ours(resource: Resource, number: int) -> ConfigurationError:
    """Return the error for a local change of a resource that the hub manages."""
    words = f"is managed by the hub (version {number}): change it there; --local overrides it until its next version"
    return error_at(resource, (), words)


def _key(name: str) -> Key:
    kind, _, own = name.partition("/")
    found = KINDS.get(kind)
    return (kind, "") if found is not None and found.single else (kind, own)
