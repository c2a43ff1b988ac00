"""TCP endpoints: host and port."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import msgspec

PORT_MAX: Final = 65535
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound to


class ListenEndpoint(msgspec.Struct, frozen=True):
    """``host:port``; port 0 lets the system choose. An IPv6 host is kept without its brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenEndpoint:
        """Parse ``host:port`` or ``[IPv6]:port``. Raises `ValueError` with the expected form."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f'"{text}" is not host:port; write an IPv6 address in brackets: [::1]:1883')
        if not colon or not host:
            raise ValueError(f'"{text}" is not host:port; for example 0.0.0.0:1883')
        return cls(valid_host(host), valid_port(port))

    @property
    def loopback(self) -> bool:
        """True when only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def from_here(self) -> ListenEndpoint:
        """Endpoint for a client on this machine: the wildcard address becomes loopback."""
        return ListenEndpoint(_ANY_ADDRESS.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return authority(self.host, self.port)


def authority(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets (RFC 3986 section 3.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def valid_host(value: str) -> str:
    """Return a host name or address for the system's resolver. Raises `ValueError`."""
    if not value or re.search(r"[\s\[\]/@]", value):
        raise ValueError(f'"{value}" is not a host')
    return value


def valid_port(value: str | int) -> int:
    """Return a TCP port, 0 to 65535. Raises `ValueError`."""
    text = str(value)
    if not (text.isascii() and text.isdigit()) or int(text) > PORT_MAX:
        raise ValueError(f'"{value}" is not a port; expected 0 to {PORT_MAX}')
    return int(text)
