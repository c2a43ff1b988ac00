"""Names of hosts by which clients choose an address space, as they are compared."""

from __future__ import annotations


def host_key(host: str) -> str:
    """Return the form in which names of hosts are compared (RFC 4343: without case)."""
    return host.lower().rstrip(".")
