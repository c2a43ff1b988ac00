"""Rules for an issuer of bearer tokens, at a gateway or a hub."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from bridge.resources.errors import Path
from bridge.resources.resource import Errors, Resource, error_at
from edge.broker.configuration import TokenIntrospection, TokenIssuer
from edge.broker.security.limits import (
    INTROSPECTION_GRACE_S_MAX,
    INTROSPECTION_INTERVAL_S_MAX,
    INTROSPECTION_INTERVAL_S_MIN,
)
from edge.broker.security.site import host_name

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts that may get a password without TLS: it does not leave this machine."""


def issuer_faults(resource: Resource, path: Path, oidc: TokenIssuer) -> Errors:
    """Yield the errors of the part at this path of the resource."""
    for i, key_host in enumerate(oidc.key_hosts):
        if host_name(key_host) is None:
            yield error_at(resource, (*path, "keyHosts", i), f'"{key_host}" is not a host, or host:port')
    if oidc.client_secret is not None and oidc.client_id is None:
        yield error_at(resource, (*path, "clientSecret"), "a secret belongs to a client: set clientId")
    if "openid" not in oidc.scope.split():
        yield error_at(resource, (*path, "scope"), "scope must contain openid: without it the issuer sends no id token")
    if oidc.introspection is not None:
        yield from _introspection_faults(resource, (*path, "introspection"), oidc.introspection)
    try:
        url = urlsplit(oidc.issuer)
        host, _ = url.hostname, url.port
    except ValueError:
        host, url = None, urlsplit("")
    if not host or url.scheme not in ("http", "https") or url.query or url.fragment or url.username is not None:
        yield error_at(
            resource,
            (*path, "issuer"),
            f'"{oidc.issuer}" is not an issuer; expected https://host/path, exactly as in the token claim `iss`',
        )
    elif url.scheme == "http" and host not in LOOPBACK:
        message = (
            "use https://: over http:// anyone on the network could replace its keys (allowed on this machine only)"
        )
        yield error_at(resource, (*path, "issuer"), message)


def _introspection_faults(resource: Resource, path: Path, asking: TokenIntrospection) -> Errors:
    least, most = INTROSPECTION_INTERVAL_S_MIN, INTROSPECTION_INTERVAL_S_MAX
    if not least <= asking.interval <= most:
        yield error_at(resource, (*path, "interval"), f"has to be from {least:g}s to {most / 60:g}m")
    if asking.grace_s > INTROSPECTION_GRACE_S_MAX:
        yield error_at(resource, (*path, "offlineGrace"), "has to be a year at most; a token ends when it expires")


def token_url_fault(text: str) -> str:
    """Return why a text is not a URL of a token endpoint; empty when it is one."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host, url = None, urlsplit("")
    if not host or url.scheme not in ("http", "https") or url.fragment or url.username is not None:
        return f'"{text}" is not a URL of a token endpoint; expected https://host/path'
    if url.scheme == "http" and host not in LOOPBACK:
        return "use https://: over http:// the client's secret would be readable (allowed on this machine only)"
    return ""
