"""Import the configuration of ActiveMQ Artemis: broker.xml with its users and roles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edge.appliance.importing.artemis_access import import_users
from edge.appliance.importing.artemis_addresses import AddressImport, read_syntax
from edge.appliance.importing.artemis_file import XmlElement, read_artemis
from edge.appliance.importing.artemis_peers import import_peers
from edge.appliance.importing.report import ImportedConfiguration, ImportNote, ImportOutcome
from edge.configuration.first_gateway import SPACE, document_of
from edge.configuration.resource_names import ResourceNames

PROTOCOLS: Final = {"AMQP": "amqp", "MQTT": "mqtt"}
"""Listeners by the protocol of an acceptor."""
IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED
_ACCEPTOR: Final = re.compile(
    r"(?:tcp|netty)://(?P<host>\[[^\]]*\]|[^:?;]*):(?P<port>\d{1,5})\??(?P<rest>.*)", re.DOTALL
)
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - as in the broker that is imported
"""Address of an acceptor without one."""
_PEM: Final = ("PEM", "PEMCFG")
_WEAKER: Final = {
    "anycastPrefix": "addresses have no prefixes: clients leave it out",
    "multicastPrefix": "addresses have no prefixes: clients leave it out",
    "connectionsAllowed": "limits.connectionsMax is for all listeners",
    "securityDomain": "all listeners have the same users",
    "saslMechanisms": "PLAIN, SCRAM-SHA-256, EXTERNAL, OAUTHBEARER and, without users, ANONYMOUS",
}
"""Parameters of an acceptor that a client may notice."""
_READ: Final = frozenset((
    "acceptors", "addresses", "address-settings", "bridges", "broker-connections", "connectors", "security-settings",
    "security-enabled", "wildcard-addresses",
))  # fmt: skip
_OTHERS: Final[Mapping[str, tuple[ImportOutcome, str]]] = {
    "global-max-size": (CHANGED, "messages are on disk; limits.memoryBytesMax bounds the memory of connections"),
    "max-disk-usage": (CHANGED, "limits.freeFloorBytes is the space that stays free"),
    "name": (NOT_NEEDED, "the gateway has the name of --name"),
    "persistence-enabled": (NOT_NEEDED, "every message is on disk before it is acknowledged"),
    "diverts": (LEFT_OUT, "a message has one address: subscribe to it, or forward it"),
    "cluster-connections": (LEFT_OUT, "a gateway is one broker: gateways meet at a hub"),
    "ha-policy": (LEFT_OUT, "a gateway is one broker: its disk keeps what it has acknowledged"),
    "broadcast-groups": (LEFT_OUT, "a gateway is one broker: gateways meet at a hub"),
    "discovery-groups": (LEFT_OUT, "a gateway is one broker: gateways meet at a hub"),
    "grouping-handler": (LEFT_OUT, "message groups are not kept together"),
    "federations": (LEFT_OUT, "consumers of the peer are not followed: forward addresses"),
    "broker-plugins": (LEFT_OUT, "plugins are not run"),
    "remoting-incoming-interceptors": (LEFT_OUT, "plugins are not run"),
    "remoting-outgoing-interceptors": (LEFT_OUT, "plugins are not run"),
    "connector-services": (LEFT_OUT, "plugins are not run"),
    "connection-routers": (LEFT_OUT, "clients are not sent to another broker"),
    "resource-limit-settings": (LEFT_OUT, "limits of the gateway are for each user"),
    "metrics": (NOT_NEEDED, "metrics are at /metrics"),
    "metrics-plugin": (NOT_NEEDED, "metrics are at /metrics"),
    "populate-validated-user": (NOT_NEEDED, "each message has the device that sent it"),
    "reject-empty-validated-user": (NOT_NEEDED, "each message has the device that sent it"),
}
"""Results for settings without a value here; every other one is of the process or of the journal."""
_OF_THE_PROCESS: Final = "of the broker's process or journal"


def import_artemis(path: Path, gateway: str) -> ImportedConfiguration:
    """Return the resources of a gateway called `gateway`. Raises ImportFileError."""
    return _ArtemisImport(path, read_artemis(path), gateway).run()


class _ArtemisImport:
    def __init__(self, path: Path, core: XmlElement, gateway: str) -> None:
        self._path = path
        self._core = core
        self._gateway = gateway
        self._notes: list[ImportNote] = []

    def run(self) -> ImportedConfiguration:
        syntax = read_syntax(self._core)
        importing = AddressImport(self._core, syntax)
        specs, notes = importing.run()
        users, more = import_users(self._core, self._path.parent, syntax, importing.names)
        queues = {each["address"]: each.get("topic", each["address"]) for each in specs}
        peers = import_peers(self._core, syntax, queues | _queues(self._core))
        self._notes += [*notes, *more, *peers.notes]
        for forwarder in peers.forwarders:
            _with_forwarder(specs, forwarder.address, forwarder.spec, importing.default_type)
        space: dict[str, Any] = {"authenticationService": {"name": self._mode()}, "defaultType": importing.default_type}
        if peers.connectors:
            space["connectors"] = peers.connectors
        names, logins = (ResourceNames(f"{SPACE}.") for _ in range(2))
        gateway = {"listeners": self._listeners()}
        self._others()
        return ImportedConfiguration(
            [
                document_of("Gateway", self._gateway, gateway),
                document_of("AddressSpace", SPACE, space),
                *(document_of("Address", names.make(each["address"], "all"), each) for each in specs),
                *(document_of("MessagingUser", logins.make(each["username"], "user"), each) for each in users),
            ],
            self._notes,
        )

    def _mode(self) -> str:
        enabled = self._core.first("security-enabled")
        if enabled is None:
            return "standard"
        self._notes.append(enabled.note(IMPORTED))
        return "none" if enabled.text == "false" else "standard"

    # --- listeners --------------------------------------------------------------------------------------------------

    def _listeners(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        acceptors = [each for group in self._core.of("acceptors") for each in group.of("acceptor")]
        for element in sorted(acceptors, key=lambda each: len(_protocols(_parameters(each)))):
            self._acceptor(element, made)
        return made

    def _acceptor(self, element: XmlElement, made: dict[str, Any]) -> None:
        """Take an acceptor as a listener of the first of its protocols that has none. Those with few come first."""
        found = _ACCEPTOR.fullmatch(element.text)
        parameters = _parameters(element)
        spoken = [PROTOCOLS[each] for each in PROTOCOLS if each in _protocols(parameters)]
        for name in _protocols(parameters):
            if name not in PROTOCOLS:
                self._notes.append(element.note(LEFT_OUT, "its clients use AMQP 1.0 (JMS: Qpid JMS)", name))
        if found is None or not 0 < int(found["port"]) <= 65_535:
            self._notes.append(element.note(LEFT_OUT, "it is not tcp://host:port"))
            return
        tls = self._tls(element, parameters)
        place = f"{found['host'] or EVERYWHERE}:{found['port']}"
        for name, words in _WEAKER.items():
            if name in parameters:
                self._notes.append(element.note(LEFT_OUT, words, name))
        free = [f"{name}{'s' if tls is not None else ''}" for name in spoken]
        free = [name for name in free if name not in made]
        if not spoken or (parameters.get("needClientAuth") == "true" and tls is None):
            words = "its clients use AMQP 1.0 or MQTT" if not spoken else "it needs certificates: set listeners.tls"
            self._notes.append(element.note(LEFT_OUT, words))
        elif not free:
            words = ", ".join(f"{name} clients use {made[name]}" for name in spoken if name in made)
            self._notes.append(element.note(LEFT_OUT, f"a listener has one protocol: {words or 'see the others'}"))
        elif tls and made.setdefault("tls", tls) != tls:
            self._notes.append(element.note(LEFT_OUT, "all listeners with TLS have the same certificate"))
        else:
            made[free[0]] = place
            self._notes.append(element.note(IMPORTED, f"{free[0]} {place}"))

    def _tls(self, element: XmlElement, parameters: Mapping[str, str]) -> dict[str, Any] | None:
        """Return `listeners.tls`, empty for the gateway's own certificate. Return None for an acceptor without TLS, or
        one that requires certificates of clients and has no file with their authorities."""
        if parameters.get("sslEnabled") != "true":
            return None
        made: dict[str, Any] = {}
        store = parameters.get("keyStorePath", "")
        if store and parameters.get("keyStoreType", "").upper() in _PEM:
            made = {"certificate": store, "key": store}
        else:
            words = "the gateway's own certificate: write yours as PEM, and name it in listeners.tls"
            self._notes.append(element.note(CHANGED, words, "keyStorePath"))
        if parameters.get("needClientAuth") != "true":
            return made
        trusted = parameters.get("trustStorePath", "")
        if not trusted or parameters.get("trustStoreType", "").upper() not in _PEM or not made:
            words = "authorities of clients as PEM: name them in listeners.tls.clientCa"
            self._notes.append(element.note(LEFT_OUT, words, "trustStorePath"))
            return None
        return {**made, "clientCa": trusted, "clientRequired": True}

    # --- inside -----------------------------------------------------------------------------------------------------

    def _others(self) -> None:
        """Note the settings that have no value here."""
        for element in self._core.inner:
            if element.name in _OTHERS:
                if element.name in {"broker-plugins", "diverts", "cluster-connections"} and not element.inner:
                    continue
                self._notes.append(element.note(*_OTHERS[element.name]))
            elif element.name not in _READ:
                self._notes.append(element.note(NOT_NEEDED, _OF_THE_PROCESS))


# --- inside -----------------------------------------------------------------------------------------------------------


def _parameters(element: XmlElement) -> dict[str, str]:
    """Return the parameters of an acceptor's URI, which are separated by semicolons."""
    _, _, rest = element.text.partition("?")
    pairs = (each.partition("=") for each in re.split("[;&]", rest) if each)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _protocols(parameters: Mapping[str, str]) -> list[str]:
    """Return the protocols of an acceptor; without the parameter it speaks all of them."""
    given = parameters.get("protocols", "AMQP,MQTT,CORE,OPENWIRE,STOMP")
    return [name for each in given.split(",") if (name := each.strip().upper())]


def _queues(core: XmlElement) -> dict[str, str]:
    """Return the address of each declared queue by its name."""
    return {
        queue.attributes.get("name", ""): address.attributes.get("name", "")
        for group in core.of("addresses")
        for address in group.of("address")
        for kind in address.of("anycast", "multicast")
        for queue in kind.of("queue")
    }


def _with_forwarder(specs: list[dict[str, Any]], address: str, forwarder: dict[str, Any], kind: str) -> None:
    """Add a forwarder to its address, which is made if there is none."""
    found = next((each for each in specs if each["address"] == address), None)
    if found is None:
        found = {"address": address, "type": kind}
        specs.append(found)
    found.setdefault("forwarders", []).append(forwarder)
