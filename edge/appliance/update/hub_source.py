"""Bundles at the gateway's own hub: their URLs, and the TLS context that shows the gateway's certificate.

The hub answers HTTP on the port of the uplink, so no other port has to be open, and on the same ways: `url`, `failover`
and `proxy` of the hub.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

from bridge.enrolment import ALPN
from bridge.hub_bundles import name_in, target_of
from bridge.resources.values import HubUrl
from edge.broker.configuration import TlsFiles
from edge.broker.security.peer_tls import peer_context
from edge.configuration.resources import GatewaySpec, HubPart, SystemSpec

NO_HUB: Final = (
    "System: its bundle is at the hub (hub:NAME), and this gateway has no hub with TLS and a certificate: enrol it, or "
    "use the URL of a web server"
)


def hub_urls(system: SystemSpec, hub: HubPart | None) -> Sequence[str]:
    """Return the URLs of a system's bundle at the hub, in the order in which they are tried.

    Empty: it is elsewhere, or the gateway has no way to fetch it there.
    """
    name = name_in(system.url)
    if name is None or hub is None or hub.tls is None or hub.tls.certificate is None:
        return ()
    places = [HubUrl.parse(url) for url in hub.urls]
    return [f"https://{each.endpoint}{target_of(name, system.sha256)}" for each in places if each.secure]


def hub_fault(system: SystemSpec, gateway: GatewaySpec | None) -> str | None:
    """Return why a gateway cannot fetch this system's bundle; None if it can try."""
    hub = gateway.hub if gateway is not None else None
    return NO_HUB if name_in(system.url) is not None and not hub_urls(system, hub) else None


def hub_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for HTTP at the hub, also on its port for AMQP. Raises `PeerTlsError`. It blocks."""
    context = peer_context(files)
    context.set_alpn_protocols([ALPN])
    return context
