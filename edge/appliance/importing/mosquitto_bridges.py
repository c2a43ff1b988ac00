"""Bridges of Mosquitto (mosquitto.conf(5), "Configuring Bridges") as connectors and forwarders."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from bridge.forwarders.mapping import MappingError, fits
from bridge.resources.endpoint import valid_host, valid_port
from bridge.topic_filter import filter_fault
from edge.appliance.importing.mosquitto_file import MosquittoSection, Setting
from edge.appliance.importing.report import ImportNote, ImportOutcome
from edge.configuration.resource_names import ResourceNames

MQTT_PORT: Final = 1883
DIRECTIONS: Final = ("out", "in", "both")
QOS: Final = ("0", "1", "2")
IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED

_OTHERS: Final[Mapping[str, tuple[ImportOutcome, str]]] = {
    "bridge_attempt_unsubscribe": (NOT_NEEDED, "subscriptions at the peer follow the forwarders"),
    "bridge_alpn": (LEFT_OUT, "a connector sends no ALPN"),
    "bridge_bind_address": (LEFT_OUT, "a connector has `interface`, the name of a network interface"),
    "bridge_insecure": (LEFT_OUT, "the name in the peer's certificate is always checked"),
    "bridge_psk": (LEFT_OUT, "pre-shared keys are not supported: use a user and TLS"),
    "bridge_identity": (LEFT_OUT, "pre-shared keys are not supported: use a user and TLS"),
    "bridge_require_ocsp": (LEFT_OUT, "a connector has `tls.crl`, a revocation list"),
    "bridge_tls_version": (NOT_NEEDED, "TLS 1.2 and 1.3"),
    "bridge_protocol_version": (NOT_NEEDED, "MQTT 3.1.1, or 5 where properties need it"),
    "bridge_outgoing_retain": (CHANGED, "messages keep their retain flag"),
    "bridge_max_packet_size": (CHANGED, "the peer's maximum counts"),
    "cleansession": (NOT_NEEDED, "messages wait in the store of the gateway"),
    "local_cleansession": (NOT_NEEDED, "messages wait in the store of the gateway"),
    "notifications": (CHANGED, "the state of the bridge is in `waypost bridge status`, not in a topic"),
    "notifications_local_only": (CHANGED, "the state of the bridge is in `waypost bridge status`, not in a topic"),
    "notification_topic": (CHANGED, "the state of the bridge is in `waypost bridge status`, not in a topic"),
    "round_robin": (CHANGED, "the first endpoint is preferred"),
    "start_type": (NOT_NEEDED, "a connector connects by itself, and again after a break"),
    "restart_timeout": (NOT_NEEDED, "pauses between attempts grow up to a minute"),
    "idle_timeout": (CHANGED, "a connection stays open"),
    "threshold": (CHANGED, "a connection stays open"),
    "try_private": (NOT_NEEDED, "loops are recognised by the gateway's mark in messages"),
}
"""Results for settings without a value here; every other one is left out."""


class ForwarderRule(NamedTuple):
    """Forwarder of an address."""

    setting: Setting
    address: str
    """Local address or filter."""
    forwarder: dict[str, Any]


class ImportedBridge(NamedTuple):
    """Connector of a bridge with its forwarders."""

    connector: dict[str, Any] | None
    """None if it cannot be imported."""
    rules: list[ForwarderRule]
    notes: list[ImportNote]


def import_bridge(section: MosquittoSection, names: ResourceNames) -> ImportedBridge:
    """Return a connector with forwarders for a bridge. `names`: of connectors."""
    notes: list[ImportNote] = []
    head = section.head
    assert head is not None  # noqa: S101 - a bridge begins with `connection`
    hosts = section.last("address", "addresses")
    endpoints = [] if hosts is None else list(_endpoints(hosts, notes))
    if not endpoints:
        notes.append(head.note(LEFT_OUT, "its address is missing or cannot be used"))
        return ImportedBridge(None, [], notes)
    name = names.make(head.value, "bridge")
    connector: dict[str, Any] = {"name": name, "type": "mqtt", "endpointHosts": endpoints}
    notes.append(head.note(IMPORTED, f"connector {name}"))
    connector |= _identity(section, notes) | _tls(section, notes) | _pace(section, notes)
    if "credentials" in connector and "tls" not in connector:
        connector["credentials"]["plainWithoutTls"] = True
    rules = [rule for setting in section.of("topic") for rule in _rules(setting, name, notes)]
    for setting in section.settings:
        if setting.name in _OTHERS:
            notes.append(setting.note(*_OTHERS[setting.name]))
        elif setting.name not in _READ:
            notes.append(setting.note(LEFT_OUT, "unknown"))
    return ImportedBridge(connector, rules, notes)


# --- inside -----------------------------------------------------------------------------------------------------------

_READ: Final = frozenset((
    "address", "addresses", "bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_keyfile", "clientid",
    "keepalive_interval", "local_clientid", "local_password", "local_username", "password", "remote_clientid",
    "remote_password", "remote_username", "topic", "username",
))  # fmt: skip
"""Settings with a result of their own."""


def _endpoints(setting: Setting, notes: list[ImportNote]) -> Iterator[dict[str, Any]]:
    for each in setting.value.split():
        host, colon, port = each.rpartition(":")
        if not colon or each.endswith("]"):
            host, port = each, str(MQTT_PORT)
        try:
            yield {"host": valid_host(host.strip("[]")), "port": valid_port(port)}
        except ValueError as why:
            notes.append(setting.note(LEFT_OUT, str(why)))
        else:
            notes.append(setting.note(IMPORTED))


def _identity(section: MosquittoSection, notes: list[ImportNote]) -> dict[str, Any]:
    """Return client id and credentials at the peer."""
    found: dict[str, Any] = {}
    client, user, password = (
        section.last(*each)
        for each in (("remote_clientid", "clientid"), ("remote_username", "username"), ("remote_password", "password"))
    )
    if client is not None:
        found["container"] = client.value
        notes.append(client.note(IMPORTED))
    if user is not None:
        found["credentials"] = {"username": user.value, "password": password.value if password is not None else ""}
        notes.append(user.note(IMPORTED))
    if password is not None:
        words = "" if user is not None else "a password needs a user name"
        notes.append(password.note(IMPORTED if user is not None else LEFT_OUT, words))
    inner = section.of("local_clientid", "local_username", "local_password")
    notes += [each.note(NOT_NEEDED, "forwarders read the store directly") for each in inner]
    return found


def _tls(section: MosquittoSection, notes: list[ImportNote]) -> dict[str, Any]:
    fields = {"bridge_cafile": "caCert", "bridge_certfile": "clientCert", "bridge_keyfile": "clientKey"}
    tls = {fields[each.name]: each.value for each in section.of(*fields)}
    notes += [each.note(IMPORTED) for each in section.of(*fields)]
    folders = section.of("bridge_capath")
    notes += [each.note(CHANGED, "the authorities of the system count") for each in folders]
    return {"tls": tls} if tls or folders else {}


def _pace(section: MosquittoSection, notes: list[ImportNote]) -> dict[str, Any]:
    alive = section.last("keepalive_interval")
    if alive is None:
        return {}
    if not (alive.value.isascii() and alive.value.isdigit()) or not 1 <= int(alive.value[:6]) <= 65_535:
        notes.append(alive.note(CHANGED, "it is not 1 to 65535 seconds: the default is used"))
        return {}
    notes.append(alive.note(IMPORTED))
    return {"mqtt": {"keepAlive": f"{int(alive.value)}s"}}


def _rules(setting: Setting, connector: str, notes: list[ImportNote]) -> Iterator[ForwarderRule]:
    """Yield the forwarders of a line ``topic PATTERN [DIRECTION [QOS]] [LOCAL-PREFIX REMOTE-PREFIX]``."""
    try:
        pattern, *rest = shlex.split(setting.value)
    except ValueError:
        notes.append(setting.note(LEFT_OUT, "a quote is not closed, or the pattern is missing"))
        return
    direction = rest.pop(0) if rest and rest[0] in DIRECTIONS else "out"
    qos = rest.pop(0) if rest and rest[0] in QOS else "0"
    local, remote = (f"{prefix}{pattern}" for prefix in (*rest, "", "")[:2])
    fault = filter_fault(local) or filter_fault(remote) or _unlike(local, remote, setting)
    if fault:
        notes.append(setting.note(LEFT_OUT, fault))
        return
    name = f"{connector}-{setting.place.rpartition(':')[2]}"
    common = {"remoteAddress": f"{connector}/{remote}"} | ({"qos": 0} if qos == "0" else {})
    if direction != "in":
        yield ForwarderRule(setting, local, {"name": f"{name}-out", **common})
    if direction == "in":
        yield ForwarderRule(setting, local, {"name": f"{name}-in", "direction": "in", **common})
    if direction == "both":
        notes.append(setting.note(CHANGED, "outgoing only: both directions would be a loop; add `in` with a prefix"))
    else:
        notes.append(setting.note(IMPORTED, f"{direction}: {local} at {remote}"))


def _unlike(local: str, remote: str, setting: Setting) -> str:
    """Return why names of one side cannot become names of the other; empty if they can."""
    try:
        fits(remote, local)
    except MappingError as why:
        return str(why)
    return "topics that begin with $SYS are not forwarded" if setting.value.startswith("$SYS") else ""
