"""Bridges and broker connections of Artemis as connectors of type `amqp`, with forwarders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from bridge.resources.endpoint import valid_host, valid_port
from bridge.topic_filter import filter_fault
from edge.appliance.importing.artemis_addresses import WildcardSyntax
from edge.appliance.importing.artemis_file import XmlElement
from edge.appliance.importing.report import ImportNote, ImportOutcome
from edge.configuration.resource_names import ResourceNames

AMQP_PORT: Final = 5672
"""Port of a broker connection without one."""
IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED
_OVER_AMQP: Final = "over AMQP: the acceptor at the peer has to speak it"
_OTHER_LINKS: Final = {
    "mirror": "a store is not mirrored: forward addresses, or use a hub",
    "federation": "consumers of the peer are not followed: forward addresses",
    "peer": "there is no router network: forward addresses",
}
_TUNING: Final = frozenset((
    "retry-interval", "retry-interval-multiplier", "max-retry-interval", "initial-connect-attempts",
    "reconnect-attempts", "reconnect-attempts-same-node", "failover-on-server-shutdown", "use-duplicate-detection",
    "confirmation-window-size", "producer-window-size", "check-period", "connection-ttl", "call-timeout", "concurrency",
    "min-large-message-size", "pending-ack-timeout", "ha",
))  # fmt: skip


class ArtemisForwarder(NamedTuple):
    """Forwarder of an address."""

    address: str
    spec: dict[str, Any]


class ArtemisPeers(NamedTuple):
    """Connectors and forwarders, with the results."""

    connectors: list[dict[str, Any]]
    forwarders: list[ArtemisForwarder]
    notes: list[ImportNote]


def import_peers(core: XmlElement, syntax: WildcardSyntax, queues: dict[str, str]) -> ArtemisPeers:
    """Return the connectors of a broker. `queues`: the address of each queue by its name."""
    return _PeerImport(core, syntax, queues).run()


# --- inside -----------------------------------------------------------------------------------------------------------


class _PeerImport:
    def __init__(self, core: XmlElement, syntax: WildcardSyntax, queues: dict[str, str]) -> None:
        self._core = core
        self._syntax = syntax
        self._queues = queues
        self._names = ResourceNames()
        self._made = ArtemisPeers([], [], [])
        self._uris = {
            each.attributes.get("name", ""): each for group in core.of("connectors") for each in group.of("connector")
        }

    def run(self) -> ArtemisPeers:
        for element in (each for group in self._core.of("bridges") for each in group.of("bridge")):
            self._bridge(element)
        for group in self._core.of("broker-connections"):
            for element in group.inner:
                self._connection(element)
        used = {each.text for each in self._references()}
        for name, element in self._uris.items():
            self._note(element, NOT_NEEDED, "a bridge names it" if name in used else "no bridge uses it")
        return self._made

    def _references(self) -> Iterator[XmlElement]:
        for group in self._core.of("bridges"):
            for bridge in group.of("bridge"):
                for static in bridge.of("static-connectors"):
                    yield from static.of("connector-ref")

    def _bridge(self, element: XmlElement) -> None:
        references = [each for static in element.of("static-connectors") for each in static.of("connector-ref")]
        uris = [self._uris[each.text].text for each in references if each.text in self._uris]
        texts = {each.name: each.text for each in element.inner}
        queue = texts.get("queue-name", "")
        address = self._queues.get(queue, queue)
        remote = texts.get("forwarding-address") or address
        secret = (texts.get("user", ""), texts.get("password", ""))
        name = self._connector(element, uris, secret)
        if name is None:
            return
        known = {"static-connectors", "queue-name", "forwarding-address", "user", "password"}
        for inner in element.inner:
            if inner.name in _TUNING:
                self._note(element, NOT_NEEDED, "a connector retries until its peer answers", inner.name)
            elif inner.name not in known:
                self._note(element, LEFT_OUT, "a forwarder has `only` for a part of the messages", inner.name)
        if element.of("filter"):
            self._note(element, LEFT_OUT, "without its filter it would forward too much: add a forwarder")
            return
        self._forward(element, name, address, remote, "out")

    def _connection(self, element: XmlElement) -> None:
        if element.name != "amqp-connection":
            self._note(element, LEFT_OUT, "it is not a connection over AMQP")
            return
        given = element.attributes
        name = self._connector(element, [given.get("uri", "")], (given.get("user", ""), given.get("password", "")))
        if name is None:
            return
        for inner in element.inner:
            match = inner.attributes.get("address-match", "")
            queue = inner.attributes.get("queue-name", "")
            address = self._syntax.levels(match) if match and self._syntax.is_pattern(match) else match
            address = address or self._queues.get(queue, queue)
            if inner.name in _OTHER_LINKS:
                self._note(inner, LEFT_OUT, _OTHER_LINKS[inner.name])
            elif inner.name not in ("sender", "receiver"):
                self._note(inner, LEFT_OUT, "unknown")
            elif inner.name == "receiver" and match and self._syntax.is_pattern(match):
                self._note(inner, LEFT_OUT, "a peer is asked for one address: name each with a forwarder")
            else:
                self._forward(inner, name, address, address, "out" if inner.name == "sender" else "in")

    def _connector(self, element: XmlElement, uris: list[str], secret: tuple[str, str]) -> str | None:
        """Add a connector, and return its name; None if no peer can be used."""
        hosts = [found for uri in uris for found in self._endpoints(element, uri)]
        if not hosts:
            self._note(element, LEFT_OUT, "its peer is missing or cannot be used")
            return None
        name = self._names.make(element.attributes.get("name", ""), "peer")
        made: dict[str, Any] = {"name": name, "type": "amqp", "endpointHosts": hosts}
        tls = any(_is_tls(uri) for uri in uris)
        if tls:
            made["tls"] = {}
            self._note(element, CHANGED, "the authorities of the system count: name a file with tls.caCert", "TLS")
        if secret[0].startswith("ENC(") or secret[1].startswith("ENC("):
            self._note(element, LEFT_OUT, "its masked password: add credentials", "password")
        elif secret[0]:
            made["credentials"] = {"username": secret[0], "password": secret[1]}
            if not tls:
                made["credentials"]["plainWithoutTls"] = True
        self._made.connectors.append(made)
        self._note(element, CHANGED if element.name == "bridge" else IMPORTED, _OVER_AMQP)
        return name

    def _endpoints(self, element: XmlElement, uri: str) -> Iterator[dict[str, Any]]:
        try:
            found = urlsplit(uri)
            port = valid_port(str(found.port if found.port is not None else AMQP_PORT))
            yield {"host": valid_host(found.hostname or ""), "port": port}
        except ValueError as why:
            self._note(element, LEFT_OUT, f"{uri}: {why}")

    def _forward(self, element: XmlElement, connector: str, address: str, remote: str, direction: str) -> None:
        fault = filter_fault(address) or filter_fault(remote)
        if fault:
            self._note(element, LEFT_OUT, fault)
            return
        line = element.place.rpartition(":")[2]
        spec = {"name": f"{connector}-{line}-{direction}", "remoteAddress": f"{connector}/{remote}"}
        if direction == "in":
            spec["direction"] = "in"
        self._made.forwarders.append(ArtemisForwarder(address, spec))
        self._note(element, IMPORTED, f"{direction}: {address} at {remote}")

    def _note(self, element: XmlElement, outcome: ImportOutcome, words: str, setting: str = "") -> None:
        self._made.notes.append(element.note(outcome, words, setting))


def _is_tls(uri: str) -> bool:
    return parse_qs(urlsplit(uri).query.replace(";", "&")).get("sslEnabled") == ["true"]
