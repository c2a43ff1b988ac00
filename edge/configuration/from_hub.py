"""What a hub may not decide about a gateway: who it is, and who its users are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bridge.resources.errors import ConfigurationError
from bridge.resources.resource import Resource, error_at
from edge.configuration.resources import GatewaySpec, MessagingUserSpec


def hub_faults(resources: Iterable[Resource]) -> Iterator[ConfigurationError]:
    """Everything in these resources that only somebody at the gateway may say."""
    for resource in resources:
        spec = resource.spec
        if isinstance(spec, MessagingUserSpec):
            words = "users and their secrets are the gateway's own: waypost apply there"
            yield error_at(resource, (), words)
        if isinstance(spec, GatewaySpec) and spec.hub is not None:
            for field, value in (("gateway", spec.hub.gateway), ("tls", spec.hub.tls)):
                if value is not None:
                    words = "who the gateway is at its hub is for its enrolment to say: waypost edge enrol there"
                    yield error_at(resource, ("spec", "hub", field), words)
