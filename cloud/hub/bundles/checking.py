"""Check of a configuration that names a bundle of this hub: it has to be here before gateways are sent to it."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.hub_bundles import name_in
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import Resource, error_at, of_kind
from cloud.hub.bundles.folder import BundleFolder
from edge.configuration.resources import SystemSpec


def require_bundles(resources: Sequence[Resource], folder: BundleFolder) -> None:
    """Raise ConfigurationRejected unless the folder has the bundles of this hub that resources name. It blocks."""
    errors = [
        error_at(resource, ("spec", "url"), fault)
        for resource, spec in of_kind(resources, SystemSpec)
        if (fault := _fault(spec, folder)) is not None
    ]
    if errors:
        raise ConfigurationRejected(errors)


def _fault(system: SystemSpec, folder: BundleFolder) -> str | None:
    """Return why a system cannot be fetched from this hub; None if it can, or has to be fetched elsewhere."""
    name = name_in(system.url)
    if name is None:
        return None
    try:
        found = folder.find(name)
    except OSError as error:
        return f"the bundle {name} of this hub cannot be read: {error.strerror or error}"
    if found is None:
        return f"this hub has no bundle {name}: add it with waypost hub bundle add"
    if (found.sha256, found.size) != (system.sha256, system.size):
        words = f"the bundle {name} of this hub has the SHA-256 {found.sha256} and {found.size} bytes"
        return f"{words}, not those of this System: add the bundle that was built with it"
    return None
