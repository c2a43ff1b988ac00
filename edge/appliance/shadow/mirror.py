"""Mirror of one data directory: its resources are applied and removed, and the running gateway is asked about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.connectors.settings import ClientIdentity
from bridge.dialer import PeerEndpoint
from edge.appliance.crossing.documents import BridgeStatus
from edge.appliance.resource_commands import explained
from edge.appliance.running import gateway_client
from edge.appliance.shadow.broker_session import BrokerAccess
from edge.appliance.shadow.mirror_resources import (
    COMPARISON,
    MIRROR,
    MirrorInForce,
    MirrorSource,
    comparison_identity,
    mirror_fault,
    mirror_in,
    outgoing_with,
    with_mirror,
    with_user,
    without_mirror,
)
from edge.broker.configuration import TlsFiles
from edge.broker.listeners.endpoints import running_endpoints
from edge.broker.security.peer_tls import peer_context
from edge.configuration.history import ON_THIS_MACHINE
from edge.configuration.own_text import resources_in
from edge.configuration.repository import ConfigurationChanged, Repository
from edge.output.errors import CommandError, Exit
from edge.output.text import word

DISCONNECTED_S: Final = 30.0
"""Longest time in which a running gateway ends the connection, after the commit of what it has received."""


def access_of(source: MirrorSource) -> BrokerAccess:
    """Return the way to a broker that is not mirrored yet, for a check."""
    files = None if source.tls is None else msgspec.convert(source.tls, TlsFiles)
    endpoint = PeerEndpoint(source.host, source.port, files is not None, "mqtt")
    identity = ClientIdentity(f"{source.client_id or 'waypost'}{COMPARISON}", source.username, source.password)
    return BrokerAccess([endpoint], identity, None if files is None else partial(peer_context, files))


class GatewayMirror:
    """Mirror of a gateway's data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._repository = Repository(data)

    def required(self) -> MirrorInForce:
        """Return the mirror. Raises CommandError without one."""
        with explained("read"):
            found = mirror_in(self._repository.load().resources)
        if found is None:
            hint = f"make one: waypost shadow start --data {word(str(self.data))} --from HOST:PORT"
            raise CommandError("this gateway has no mirror", hint=hint, code=Exit.USAGE, error="shadow-not-found")
        return found

    def prepare(self, source: MirrorSource, filters: Sequence[str]) -> None:
        """Check that a mirror can be made, and apply the user of the comparison. Raises CommandError."""
        with explained("applied"):
            fault = mirror_fault(self._repository.load().resources, source, filters)
            if fault is not None:
                raise CommandError(fault.what, hint=fault.hint, code=Exit.USAGE, error=fault.code)
            self._replace(with_user(self._repository.own()))

    def make(self, source: MirrorSource, filters: Sequence[str]) -> list[str]:
        """Apply the resources of a mirror; return the connectors that send its messages on. Raises CommandError."""
        with explained("applied"):
            self._replace(with_mirror(self._repository.own(), source, filters))
            return outgoing_with(self._repository.load().resources, filters)

    def remove(self) -> None:
        """Remove the resources of the mirror. Raises CommandError."""
        with explained("removed"):
            self._replace(without_mirror(self._repository.own()))

    def disconnect(self) -> None:
        """Pause the mirror; return when its connection to the old broker has ended. Raises CommandError."""
        self.pause()
        deadline = time.monotonic() + DISCONNECTED_S
        while self.is_connected():
            if time.monotonic() > deadline:
                what = f"the gateway has not ended the mirror's connection within {DISCONNECTED_S:g} s"
                raise CommandError(what, hint="look at its log, then run this again", error="shadow-busy")
            time.sleep(0.2)

    def outside(self, mirror: MirrorInForce) -> BrokerAccess:
        """Return the way to the old broker, with the client identifier of the connector."""
        connector, credentials = mirror.connector, mirror.connector.credentials
        endpoints = [
            PeerEndpoint(each.host, each.port, connector.tls is not None, "mqtt", host.websocket)
            for each, host in zip(connector.endpoints, connector.hosts, strict=True)
        ]
        identity = ClientIdentity(
            mirror.client_id,
            credentials.username if credentials is not None else None,
            credentials.password if credentials is not None else None,
        )
        return BrokerAccess(endpoints, identity, partial(peer_context, connector.tls) if connector.tls else None)

    def is_running(self) -> bool:
        """Return True if a gateway runs on the data directory."""
        return running_endpoints(self.data) is not None

    def inside(self) -> BrokerAccess:
        """Return the way to the running gateway. Raises CommandError."""
        listening = running_endpoints(self.data)
        if listening is None:
            hint = f"start it: waypost run --data {word(str(self.data))}"
            raise CommandError(f"no gateway runs on {self.data}", hint=hint, code=Exit.UNREACHABLE, error="not-running")
        if "mqtt" not in listening:
            hint = 'add one for this machine alone: spec.listeners.mqtt of its Gateway: "127.0.0.1:1884"'
            raise CommandError("the gateway has no MQTT listener without TLS", hint=hint, error="no-mqtt-listener")
        place = listening["mqtt"].from_here
        with explained("read"):
            identity = comparison_identity(self._repository.load().resources)
        return BrokerAccess([PeerEndpoint(place.host, place.port, False, "mqtt")], identity)

    def is_connected(self) -> bool | None:
        """Return True while the running gateway has the mirror connected; None without a mirror, or an answer."""
        try:
            found = gateway_client(self.data, None).read(BridgeStatus, "bridge")
        except CommandError:
            return None
        states = [each.state for each in found.connectors if each.name == MIRROR]
        return states[0] == "connected" if states else None

    def pause(self) -> None:
        """Pause the mirror of the running gateway. Raises CommandError."""
        gateway_client(self.data, None).ask("bridge/pause", method="POST", connector=MIRROR)

    def _replace(self, documents: list[dict[str, Any]]) -> None:
        version = self._repository.version
        try:
            self._repository.replace_whole(resources_in(documents), expected=version, by=ON_THIS_MACHINE)
        except ConfigurationChanged as why:
            raise CommandError(str(why), hint="run this again", error="changed-meanwhile") from None
