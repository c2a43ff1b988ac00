"""Grouping of remote addresses for limits by address."""

from __future__ import annotations

import ipaddress
from typing import Final

IPV6_SITE_BITS: Final = 64
"""Prefix length of an IPv6 network (RFC 4291 section 2.5.4). A host in it can use 2**64 addresses."""


def remote_of(host: str) -> str:
    """Return the network of an IPv6 address. Return an IPv4 address or any other text unchanged."""
    if ":" not in host:
        return host
    try:
        found = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, IPV6_SITE_BITS), strict=False))
