"""Peers of a hub: gateways, applications and persons of a tenant. Pure.

A gateway is named by its certificate. An application or a person is named by a user name that ends with its tenant
(``reader@acme``). The gate (`edge.broker.security`) decides what a user may do, because rights change while it is
connected. A gateway may only send in its own name.
"""

from __future__ import annotations

import contextlib
import enum
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from cloud.hub.limits import GATEWAY_NAME_CHARACTERS_MAX

DEFAULT_TENANT: Final = "default"
"""Tenant of every peer in development mode."""
SCHEME: Final = "waypost://"
"""A certificate names its gateway in a URI of this scheme (`gateway_uri`)."""
_TENANT: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_USER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class PeerKind(enum.Enum):
    """Kind of a peer."""

    GATEWAY = "gateway"
    APPLICATION = "application"
    """A user over AMQP."""
    PERSON = "person"
    """A user over HTTP."""


@dataclass(frozen=True, slots=True)
class HubPeer:
    """Identified peer."""

    tenant: str
    name: str
    kind: PeerKind

    @property
    def identity(self) -> str:
        """Unique text of the peer, for logs, counters and authentication."""
        if self.kind is PeerKind.GATEWAY:
            return gateway_uri(self.tenant, self.name)
        return f"{self.name}@{self.tenant}"


@dataclass(frozen=True, slots=True)
class CertifiedGateway:
    """Gateway with the certificate it showed. Times are UTC seconds since 1970, 0 for a missing one."""

    peer: HubPeer
    serial: int
    begins_at: float = 0.0
    ends_at: float = 0.0


class InvalidPeer(ValueError):
    """A name or certificate does not identify a peer; the message says why."""


def gateway_uri(tenant: str, name: str) -> str:
    """Return the URI of a gateway for the subjectAltName of its certificate: ``waypost://<tenant>/<gateway>``.

    Characters of the name other than letters, digits, ``.``, ``_``, ``~`` and ``-`` are escaped (RFC 3986 section
    2.1).
    """
    return f"{SCHEME}{tenant}/{quote(name, safe='')}"


def read_certificate(certificate: Mapping[str, Any]) -> CertifiedGateway:
    """Return the gateway that a verified certificate names, as given by `ssl.SSLSocket.getpeercert`. Raises
    InvalidPeer.

    Only the URI counts: a common name has 64 characters at most, and an authority that others run as well has its own
    use of the organization name.
    """
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI" and _is_ours(value)]
    if len(uris) != 1:
        raise InvalidPeer(f"the certificate has {len(uris)} URIs {SCHEME}<tenant>/<gateway>, expected one")
    tenant, _, escaped = uris[0][len(SCHEME) :].partition("/")
    try:
        name = unquote_to_bytes(escaped).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidPeer("the gateway's name in the certificate is not UTF-8") from None
    if fault := tenant_fault(tenant) or gateway_fault(name):
        raise InvalidPeer(f"in the certificate, {fault}")
    if gateway_uri(tenant, name) != uris[0]:
        raise InvalidPeer("the URI of the certificate is not escaped as RFC 3986 section 2.1 requires")
    try:
        serial = int(certificate.get("serialNumber", ""), 16)
        begins_at, ends_at = (
            float(ssl.cert_time_to_seconds(certificate[each])) if each in certificate else 0.0
            for each in ("notBefore", "notAfter")
        )
    except ValueError:
        raise InvalidPeer("the certificate has no serial number, or an invalid date") from None
    return CertifiedGateway(HubPeer(tenant, name, PeerKind.GATEWAY), serial, begins_at, ends_at)


def parse_user(identity: str, kind: PeerKind) -> HubPeer:
    """Parse a user name ``<name>@<tenant>``. Raises InvalidPeer."""
    name, at, tenant = identity.partition("@")
    if not at:
        raise InvalidPeer(f"a user of a hub is <name>@<tenant>, for example {name[:64] or 'reader'}@{DEFAULT_TENANT}")
    if not _USER.fullmatch(name):
        raise InvalidPeer("the name of a user is 1 to 64 letters, digits, '.', '_' or '-'")
    if fault := tenant_fault(tenant):
        raise InvalidPeer(fault)
    return HubPeer(tenant, name, kind)


def tenants_of(users: Iterable[str]) -> list[str]:
    """Return the tenants of these users, sorted; ignore invalid names."""
    found = set()
    for identity in users:
        with contextlib.suppress(InvalidPeer):
            found.add(parse_user(identity, PeerKind.APPLICATION).tenant)
    return sorted(found)


def tenant_fault(name: str) -> str | None:
    """Return why this is not a valid tenant name; None if it is."""
    if _TENANT.fullmatch(name):
        return None
    return "the name of a tenant is 1 to 63 lower-case letters, digits or '-', and does not begin or end with '-'"


def gateway_fault(name: str) -> str | None:
    """Return why this is not a valid gateway name; None if it is."""
    if 0 < len(name) <= GATEWAY_NAME_CHARACTERS_MAX and name.isprintable():
        return None
    return f"the name of a gateway is 1 to {GATEWAY_NAME_CHARACTERS_MAX} printable characters"


def _is_ours(uri: object) -> bool:
    return isinstance(uri, str) and uri.startswith(SCHEME)


def tenant_of_user(name: str) -> str:
    """Return the tenant of a user; empty for an invalid name."""
    try:
        return parse_user(name, PeerKind.PERSON).tenant
    except ValueError:
        return ""
