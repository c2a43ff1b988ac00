"""Import the configuration of a Mosquitto broker: mosquitto.conf with its password file and access control list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bridge.resources.resource import OWN_VERSION
from edge.appliance.importing.mosquitto_access import (
    AccessList,
    MosquittoUser,
    read_access,
    read_passwords,
    user_documents,
)
from edge.appliance.importing.mosquitto_bridges import ForwarderRule, import_bridge
from edge.appliance.importing.mosquitto_file import MosquittoFile, MosquittoSection, Setting, read_mosquitto
from edge.appliance.importing.report import ImportedConfiguration, ImportNote, ImportOutcome
from edge.appliance.importing.text_file import find_file
from edge.configuration.first_gateway import SPACE, document_of
from edge.configuration.resource_names import ResourceNames

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - as in the broker that is imported
"""Address of a listener without one: every address of IPv4."""
DAY_S: Final = 86_400
SPANS_S: Final = {"h": 3_600, "d": DAY_S, "w": 7 * DAY_S, "m": 30 * DAY_S, "y": 365 * DAY_S}
"""Seconds of the units of `persistent_client_expiration`."""
IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED

_LIMITS: Final = {
    "max_packet_size": "packetBytesMax",
    "message_size_limit": "packetBytesMax",
    "max_inflight_messages": "inflightMax",
    "max_keepalive": "keepAliveSMax",
    "memory_limit": "memoryBytesMax",
    "max_connections": "connectionsMax",
}
"""Limits of a gateway with the meaning of a setting."""
_OF_THE_STORE: Final = "every message is on disk before it is acknowledged"
_OF_THE_PROCESS: Final = "of the broker's process: see waypost run, and the service"
_OTHERS: Final[Mapping[str, tuple[ImportOutcome, str]]] = {
    **dict.fromkeys(
        ("persistence", "persistence_file", "persistence_location", "autosave_interval", "autosave_on_changes"),
        (NOT_NEEDED, _OF_THE_STORE),
    ),
    **dict.fromkeys(
        (
            "log_dest", "log_facility", "log_timestamp", "log_timestamp_format", "log_type", "connection_messages",
            "websockets_log_level", "pid_file", "user", "set_tcp_nodelay", "websockets_headers_size",
        ),
        (NOT_NEEDED, _OF_THE_PROCESS),
    ),
    "allow_duplicate_messages": (NOT_NEEDED, "a client gets a message once for overlapping subscriptions"),
    "allow_zero_length_clientid": (NOT_NEEDED, "such a client gets an identifier"),
    "auto_id_prefix": (CHANGED, "such a client gets another identifier"),
    "auth_plugin": (LEFT_OUT, "plugins are not run: users are MessagingUser resources, or of an issuer of tokens"),
    "plugin": (LEFT_OUT, "plugins are not run: users are MessagingUser resources, or of an issuer of tokens"),
    "bind_interface": (LEFT_OUT, "give the listener the address of the interface: host:port"),
    "listener_allow_anonymous": (IMPORTED, ""),
    "check_retain_source": (NOT_NEEDED, "rights are checked where a message is delivered"),
    "auth_plugin_deny_special_chars": (NOT_NEEDED, "names with wildcards widen no rights"),
    "ciphers": (NOT_NEEDED, "the ciphers of TLS 1.2 and 1.3 that are safe today"),
    "ciphers_tls1.3": (NOT_NEEDED, "the ciphers of TLS 1.2 and 1.3 that are safe today"),
    "clientid_prefixes": (LEFT_OUT, "rights are of users: %c in an address is the client's identifier"),
    "dhparamfile": (NOT_NEEDED, "key agreement is by elliptic curves"),
    "http_dir": (LEFT_OUT, "files are not served: use a web server"),
    "max_inflight_bytes": (CHANGED, "messages under way are limited by number"),
    "max_qos": (LEFT_OUT, "QoS 0, 1 and 2 are served"),
    "max_queued_bytes": (CHANGED, "an address has a quota (quota.bytes); without one nothing is dropped"),
    "max_queued_messages": (CHANGED, "an address has a quota (quota.bytes); without one nothing is dropped"),
    "max_topic_alias": (NOT_NEEDED, "the number of topic aliases is fixed"),
    "mount_point": (LEFT_OUT, "a listener adds no prefix: give the users of it rights with that prefix"),
    "psk_file": (LEFT_OUT, "pre-shared keys are not supported: use users, or certificates"),
    "psk_hint": (LEFT_OUT, "pre-shared keys are not supported: use users, or certificates"),
    "queue_qos0_messages": (CHANGED, "messages of QoS 0 are not kept for absent clients"),
    "retain_available": (CHANGED, "retained messages are served"),
    "socket_domain": (NOT_NEEDED, "IPv4 and IPv6"),
    "sys_interval": (CHANGED, "figures are in the console and in /metrics, not in topics of $SYS"),
    "tls_engine": (LEFT_OUT, "keys are in files"),
    "tls_engine_kpass_sha1": (LEFT_OUT, "keys are in files"),
    "tls_keyform": (LEFT_OUT, "keys are in files"),
    "capath": (LEFT_OUT, "clientCa is one file: put the authorities into one"),
    "upgrade_outgoing_qos": (NOT_NEEDED, "a message is delivered with the QoS of its publisher at most"),
    "use_username_as_clientid": (LEFT_OUT, "a client's identifier is its own"),
}  # fmt: skip
"""Results for settings without a value here; every other one is left out."""
_RESTRICTIONS: Final = ("bind_interface", "mount_point", "psk_hint")
"""Settings of a listener that keep clients out, or from topics. Imported without them it would be open."""
_ACCESS: Final = ("allow_anonymous", "password_file", "acl_file")
_READ: Final = frozenset((
    "acl_file", "allow_anonymous", "bind_address", "cafile", "certfile", "crlfile", "keyfile", "listener",
    "max_connections", "max_inflight_messages", "max_keepalive", "max_packet_size", "memory_limit",
    "message_size_limit", "password_file", "per_listener_settings", "persistent_client_expiration", "port",
    "protocol", "require_certificate", "tls_version", "use_identity_as_username", "use_subject_as_username",
))  # fmt: skip


def import_mosquitto(path: Path, gateway: str) -> ImportedConfiguration:
    """Return the resources of a gateway called `gateway`. Raises ImportFileError."""
    return _MosquittoImport(path, read_mosquitto(path), gateway).run()


class _MosquittoImport:
    def __init__(self, path: Path, found: MosquittoFile, gateway: str) -> None:
        self._path = path
        self._found = found
        self._gateway = gateway
        self._notes: list[ImportNote] = []
        default = found.general.last("port", "bind_address")
        first = [MosquittoSection(default)] if default is not None or not found.listeners else []
        for section in first:
            section.settings = found.general.settings
        self._listeners = [*first, *found.listeners]
        self._is_local = default is None and not found.listeners
        """Without any listener, the broker serves clients of its own machine, without users."""

    def run(self) -> ImportedConfiguration:
        users, mode = self._users()
        gateway = {"listeners": self._sockets()}
        limits = self._limits()
        space: dict[str, Any] = {"authenticationService": {"name": mode}}
        connectors, addresses = self._bridges()
        if connectors:
            space["connectors"] = connectors
        self._others()
        documents = [
            document_of("Gateway", self._gateway, gateway | ({"limits": limits} if limits else {})),
            document_of("AddressSpace", SPACE, space),
            *addresses,
            *users,
        ]
        return ImportedConfiguration(documents, self._notes)

    # --- listeners --------------------------------------------------------------------------------------------------

    def _sockets(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for section in self._listeners:
            self._listener(section, made)
        return made

    def _listener(self, section: MosquittoSection, made: dict[str, Any]) -> None:
        place = self._endpoint(section)
        restriction = self._restriction(section)
        tls = self._tls(section)
        protocol = section.last("protocol")
        web = protocol is not None and protocol.value == "websockets"
        field = f"mqtt{'W' if web else ''}{'s' if web or tls else ''}{'s' if web and tls else ''}"
        head = section.head or Setting(self._path.name, "listener", "")
        if restriction is not None:
            self._note(head, LEFT_OUT, f"{restriction.name} protects it, which has no counterpart")
        elif place is None:
            self._note(head, LEFT_OUT, "it is not a TCP port: clients connect over TCP")
        elif field in made:
            self._note(head, LEFT_OUT, f"the gateway has one listener of a kind, and `{field}` is {made[field]}")
        elif tls and made.get("tls", tls) != tls:
            self._note(head, LEFT_OUT, "all listeners with TLS have the same certificate and authorities")
        else:
            made[field] = place
            if tls:
                made["tls"] = tls
            self._note(head, IMPORTED, f"{field} {place}")
        if protocol is not None:
            known = protocol.value in {"mqtt", "websockets"}
            self._note(protocol, IMPORTED if known else LEFT_OUT, "" if known else "it is neither mqtt nor websockets")

    def _restriction(self, section: MosquittoSection) -> Setting | None:
        """Return a setting that keeps clients out of a listener, or from topics, and cannot be imported."""
        found = section.of(*_RESTRICTIONS)
        if section.last("certfile") is None or section.last("keyfile") is None:
            found += section.of("certfile", "keyfile", "psk_file", "require_certificate")
        required = section.last("require_certificate")
        if required is not None and required.enabled and section.last("cafile") is None:
            found.append(required)
        return found[0] if found else None

    def _endpoint(self, section: MosquittoSection) -> str | None:
        """Return ``host:port``; None for a socket that is not TCP."""
        if section.head is not None and section.head.name == "listener":
            port, _, host = section.head.value.partition(" ")
        else:
            given, bound = section.last("port"), section.last("bind_address")
            port, host = given.value if given else "1883", bound.value if bound else ("" if given else LOOPBACK)
        if not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) <= 65_535:
            return None
        host = host.strip()
        return f"{f'[{host}]' if ':' in host else host or EVERYWHERE}:{port}"

    def _tls(self, section: MosquittoSection) -> dict[str, Any]:
        certificate, key = section.last("certfile"), section.last("keyfile")
        authority, required, revoked = (section.last(each) for each in ("cafile", "require_certificate", "crlfile"))
        if certificate is None or key is None:
            for setting in (certificate, key, authority, required, revoked):
                if setting is not None:
                    self._note(setting, LEFT_OUT, "TLS needs a certificate and a key")
            return {}
        tls: dict[str, Any] = {"certificate": certificate.value, "key": key.value}
        self._note(certificate, IMPORTED)
        self._note(key, IMPORTED)
        wanted = required is not None and required.enabled
        if authority is not None and wanted:
            tls |= {"clientCa": authority.value, "clientRequired": True}
            self._note(authority, IMPORTED)
        elif authority is not None:
            self._note(authority, NOT_NEEDED, "no client has to show a certificate")
        if required is not None:
            words = (
                "" if not wanted or authority is not None else "the authority of the certificates is missing (cafile)"
            )
            self._note(required, LEFT_OUT if words else IMPORTED, words)
        if revoked is not None:
            tls["clientCrl"] = revoked.value
            self._note(revoked, IMPORTED)
        version = section.last("tls_version")
        if version is not None and version.value == "tlsv1.3":
            tls["minimum"] = "1.3"
        if version is not None:
            old = version.value not in {"tlsv1.2", "tlsv1.3"}
            self._note(version, CHANGED if old else IMPORTED, "the lowest version is TLS 1.2" if old else "")
        return tls

    # --- users ------------------------------------------------------------------------------------------------------

    def _users(self) -> tuple[list[dict[str, Any]], str]:
        """Return the users, and the name of the authentication service."""
        sections = [self._found.general, *self._found.listeners]
        users: list[MosquittoUser] = []
        chosen = {name: self._one(name, sections) for name in _ACCESS}
        passwords, listed, anonymous = (chosen[each] for each in ("password_file", "acl_file", "allow_anonymous"))
        if passwords is not None:
            users, notes = read_passwords(find_file(passwords.value, self._path))
            self._note(passwords, IMPORTED, f"{len(users)} users")
            self._notes += notes
        access = None
        if listed is not None:
            access = read_access(find_file(listed.value, self._path))
            if len({each.value for section in sections for each in section.of("acl_file")}) > 1:
                access = AccessList([], [])
                self._note(listed, LEFT_OUT, "all listeners share users, and their lists differ: no user gets rights")
            else:
                self._note(listed, IMPORTED, f"{len(access.lines)} lines")
        certified = [
            each
            for section in self._listeners
            for each in section.of("use_identity_as_username", "use_subject_as_username")
            if each.enabled
        ]
        for each in certified:
            whole = each.name == "use_subject_as_username"
            words = "the user is the common name, not the whole subject" if whole else ""
            self._note(each, CHANGED if whole else IMPORTED, words)
        if certified and access is not None:
            known = {user.name for user in users}
            more = dict.fromkeys(each.user for each in access.lines if each.user is not None)
            users += [MosquittoUser(name) for name in more if name not in known]
        documents, notes = user_documents(users, access, SPACE, OWN_VERSION)
        self._notes += notes
        open_to_all = self._is_open_to_all()
        plugins = self._found.general.of("auth_plugin", "plugin", "clientid_prefixes")
        if users or certified:
            mode = "external" if certified and not any(user.hashed for user in users) else "standard"
            self._about_anonymous(anonymous, open_to_all, "every client needs a user")
        else:
            narrowed = listed or (plugins[0] if plugins else None)
            mode = "none" if open_to_all and narrowed is None else "standard"
            words = (
                f"rights of clients without a user ({narrowed.name}) have no counterpart"
                if narrowed is not None
                else ""
            )
            self._about_anonymous(anonymous, open_to_all and narrowed is not None, words)
        return documents, mode

    def _is_open_to_all(self) -> bool:
        """Return True if every listener serves clients without a user (`allow_anonymous`)."""
        general = self._found.general.last("allow_anonymous")
        for section in self._listeners:
            found = section.last("listener_allow_anonymous", "allow_anonymous") or general
            if not (found.enabled if found is not None else self._is_local):
                return False
        return True

    def _about_anonymous(self, setting: Setting | None, refused: bool, words: str) -> None:
        if setting is not None:
            self._note(setting, LEFT_OUT if refused else IMPORTED, words if refused else "")

    def _one(self, name: str, sections: Sequence[MosquittoSection]) -> Setting | None:
        """Return the setting that counts for all listeners: the first; others with another value are left out."""
        found = [each for section in sections if (each := section.last(name)) is not None]
        for other in found[1:]:
            same = other.value == found[0].value
            words = "" if same else f"all listeners share users and rights: {found[0].value} counts ({found[0].place})"
            self._note(other, IMPORTED if same else LEFT_OUT, words)
        return found[0] if found else None

    # --- limits, bridges --------------------------------------------------------------------------------------------

    def _limits(self) -> dict[str, int]:
        made: dict[str, int] = {}
        for section in dict.fromkeys((self._found.general, *self._listeners)):
            for setting in section.of(*_LIMITS):
                self._limit(setting, _LIMITS[setting.name], made)
        life = self._found.general.last("persistent_client_expiration")
        if life is not None:
            number, unit = life.value[:-1], life.value[-1:]
            seconds = int(number) * SPANS_S[unit] if number.isdigit() and number.isascii() and unit in SPANS_S else 0
            if seconds:
                made["sessionExpirySMax"] = seconds
            self._note(life, IMPORTED if seconds else CHANGED, "" if seconds else "it is not a time: a year counts")
        return made

    def _limit(self, setting: Setting, field: str, made: dict[str, int]) -> None:
        """Take a number; 0 and negative numbers mean "unlimited"."""
        digits = setting.value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            self._note(setting, LEFT_OUT, "it is not a number")
        elif int(setting.value) <= 0:
            self._note(setting, CHANGED, f"there is always a limit: the default of limits.{field} counts")
        elif field == "inflightMax" and int(setting.value) > 65_535:
            self._note(setting, CHANGED, "MQTT has 65535 packet identifiers")
            made[field] = 65_535
        else:
            made[field] = int(setting.value)
            self._note(setting, IMPORTED, f"limits.{field}")

    def _bridges(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return connectors, and addresses with their forwarders."""
        names, addresses = ResourceNames(), ResourceNames(f"{SPACE}.")
        connectors: list[dict[str, Any]] = []
        rules: dict[str, list[ForwarderRule]] = {}
        for section in self._found.bridges:
            found = import_bridge(section, names)
            self._notes += found.notes
            connectors += [found.connector] if found.connector is not None else []
            for rule in found.rules:
                rules.setdefault(rule.address, []).append(rule)
        made = [
            document_of(
                "Address",
                addresses.make(address, "all"),
                {"address": address, "type": "topic", "forwarders": [each.forwarder for each in some]},
            )
            for address, some in rules.items()
        ]
        return connectors, made

    # --- inside -----------------------------------------------------------------------------------------------------

    def _others(self) -> None:
        """Note the settings that have no value here."""
        for section in (self._found.general, *self._found.listeners):
            for setting in section.settings:
                if setting.name in _OTHERS:
                    self._note(setting, *_OTHERS[setting.name])
                elif setting.name not in _READ:
                    self._note(setting, LEFT_OUT, "unknown")

    def _note(self, setting: Setting, outcome: ImportOutcome, words: str = "") -> None:
        self._notes.append(setting.note(outcome, words))
