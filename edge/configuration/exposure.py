"""What of a gateway can be reached from other machines, and who is let in there.

Loopback needs no credentials unless the space says so: whoever is there is on this machine already. A listener that
other machines reach asks for them, unless the resources say `authenticationService: {name: none}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bridge.resources.resource import Resource, of_kind
from edge.broker.configuration import Authentication, BrokerConfiguration, Listener
from edge.configuration.resources import AddressSpaceSpec


def authentication_is_configured(resources: Sequence[Resource]) -> bool:
    """True when the resources say how clients log in, or that they need not."""
    return any(spec.authentication_service is not None for _, spec in of_kind(resources, AddressSpaceSpec))


def guarded(configuration: BrokerConfiguration, resources: Sequence[Resource]) -> BrokerConfiguration:
    """The configuration, asking for credentials where other machines reach it and the resources do not say."""
    if authentication_is_configured(resources) or not _exposed(configuration):
        return configuration
    return msgspec.structs.replace(configuration, authentication=Authentication.STANDARD)


def exposure_notices(configuration: BrokerConfiguration, resources: Sequence[Resource]) -> Iterator[str]:
    """What a person should know of who may connect; `configuration` is made of all these resources, and `guarded`."""
    exposed = _exposed(configuration)
    if not exposed:
        return
    listeners = _named(exposed)
    if configuration.authentication is Authentication.NONE:
        yield f"anyone who reaches {listeners} may connect: authenticationService is none"
        return
    if not authentication_is_configured(resources):
        yield (
            f"{listeners}: clients need credentials (waypost device add); to let anyone in, say so: "
            "AddressSpace with authenticationService: {name: none}"
        )
    clear = [listener for listener in exposed if not listener.tls]
    if clear:
        yield f"passwords cross the network unencrypted on {_named(clear)}: use mqtts, amqps, https"


def _exposed(configuration: BrokerConfiguration) -> list[Listener]:
    """Listeners that other machines reach."""
    return [listener for listener in configuration.listeners if not listener.endpoint.loopback]


def _named(listeners: Sequence[Listener]) -> str:
    return ", ".join(f"{listener.name} {listener.endpoint}" for listener in listeners)
