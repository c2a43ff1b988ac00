"""Who is at the other end of a connection: a gateway, an application or a person of a tenant. Pure.

A gateway is named by its certificate, an application or a person by a user name that ends with its tenant
(``reader@acme``). What a user may do is the gate's business (`edge.broker.security`), as it changes while it is
connected; a gateway may send in its own name, and nothing else.
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
"""Of everybody in development mode."""
SCHEME: Final = "waypost://"
"""A certificate names its gateway in a URI of this scheme (`gateway_uri`)."""
_TENANT: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_USER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Kind(enum.Enum):
    """What a peer is."""

    GATEWAY = "gateway"
    APPLICATION = "application"
    """A user over AMQP."""
    PERSON = "person"
    """A user over HTTP."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody who has shown who it is."""

    tenant: str
    name: str
    kind: Kind

    @property
    def identity(self) -> str:
        """As it is shown, counted and authenticated; no two peers have the same."""
        if self.kind is Kind.GATEWAY:
            return gateway_uri(self.tenant, self.name)
        return f"{self.name}@{self.tenant}"


@dataclass(frozen=True, slots=True)
class Certified:
    """A gateway, and the certificate it has shown. Times are UTC seconds since 1970, 0 where it has none."""

    peer: Peer
    serial: int
    begins_at: float = 0.0
    ends_at: float = 0.0


class NotAPeer(ValueError):
    """This names nobody; the message says why."""


def gateway_uri(tenant: str, name: str) -> str:
    """The URI that names a gateway in the subjectAltName of its certificate: ``waypost://<tenant>/<gateway>``, with
    what is no letter, digit, ``.``, ``_``, ``~`` or ``-`` of the gateway's name escaped (RFC 3986 section 2.1)."""
    return f"{SCHEME}{tenant}/{quote(name, safe='')}"


def certified(certificate: Mapping[str, Any]) -> Certified:
    """The gateway a verified certificate names, given as `ssl.SSLSocket.getpeercert` gives it. Raises NotAPeer.

    The URI alone counts: a common name has 64 characters at most, and an authority that others run as well has its
    own idea of what an organization is.
    """
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI" and _is_ours(value)]
    if len(uris) != 1:
        raise NotAPeer(f"the certificate has {len(uris)} URIs {SCHEME}<tenant>/<gateway>, and one is wanted")
    tenant, _, escaped = uris[0][len(SCHEME) :].partition("/")
    try:
        name = unquote_to_bytes(escaped).decode("utf-8")
    except UnicodeDecodeError:
        raise NotAPeer("the gateway's name in the certificate is not UTF-8") from None
    if fault := tenant_fault(tenant) or gateway_fault(name):
        raise NotAPeer(f"in the certificate, {fault}")
    if gateway_uri(tenant, name) != uris[0]:
        raise NotAPeer("the URI of the certificate escapes what needs no escape, or not what needs it")
    try:
        serial = int(certificate.get("serialNumber", ""), 16)
        begins_at, ends_at = (
            float(ssl.cert_time_to_seconds(certificate[each])) if each in certificate else 0.0
            for each in ("notBefore", "notAfter")
        )
    except ValueError:
        raise NotAPeer("the certificate has no serial number, or dates that are none") from None
    return Certified(Peer(tenant, name, Kind.GATEWAY), serial, begins_at, ends_at)


def user(identity: str, kind: Kind) -> Peer:
    """The application or person of a user name, ``<name>@<tenant>``. Raises NotAPeer."""
    name, at, tenant = identity.partition("@")
    if not at:
        raise NotAPeer(f"a user of a hub is <name>@<tenant>, for example {name[:64] or 'reader'}@{DEFAULT_TENANT}")
    if not _USER.fullmatch(name):
        raise NotAPeer("the name of a user is 1 to 64 letters, digits, '.', '_' or '-'")
    if fault := tenant_fault(tenant):
        raise NotAPeer(fault)
    return Peer(tenant, name, kind)


def tenants_of(users: Iterable[str]) -> list[str]:
    """The tenants these users are of; names of nobody have none."""
    found = set()
    for identity in users:
        with contextlib.suppress(NotAPeer):
            found.add(user(identity, Kind.APPLICATION).tenant)
    return sorted(found)


def tenant_fault(name: str) -> str | None:
    """Why this cannot be a tenant's name; None: it can."""
    if _TENANT.fullmatch(name):
        return None
    return "the name of a tenant is 1 to 63 small letters, digits or '-', and '-' is not at an end of it"


def gateway_fault(name: str) -> str | None:
    """Why this cannot be a gateway's name; None: it can."""
    if 0 < len(name) <= GATEWAY_NAME_CHARACTERS_MAX and name.isprintable():
        return None
    return f"the name of a gateway is 1 to {GATEWAY_NAME_CHARACTERS_MAX} printable characters"


def _is_ours(uri: object) -> bool:
    return isinstance(uri, str) and uri.startswith(SCHEME)
