"""What counts as one remote address, where addresses are counted."""

from __future__ import annotations

import ipaddress
from typing import Final

IPV6_SITE_BITS: Final = 64
"""Of an IPv6 address, those that tell one network from another (RFC 4291 section 2.5.4): who has one has 2**64 of
them."""


def remote_of(host: str) -> str:
    """An IPv4 address as it is, of an IPv6 address the network; what is none as it is."""
    if ":" not in host:
        return host
    try:
        found = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, IPV6_SITE_BITS), strict=False))
