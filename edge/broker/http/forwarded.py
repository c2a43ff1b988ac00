"""Address of a client behind proxies that this node trusts.

A proxy appends the address of its client to ``X-Forwarded-For``. Everything before that was sent by the client and may
be made up, so the list is read from its end, and only as far as its addresses are those of trusted proxies. The
standard field ``Forwarded`` (RFC 7239) is not read: proxies that write the other one pass it on as the client sent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

IpAddress = IPv4Address | IPv6Address
FIELD: Final = b"x-forwarded-for"
PROXIES_MAX: Final = 16
"""Proxies in a row that are looked at: the length of the field must not cost time."""


class ProxyNetwork:
    """Address of a trusted proxy, or the network of several."""

    __slots__ = ("_network",)

    def __init__(self, network: IPv4Network | IPv6Network) -> None:
        self._network = network

    @classmethod
    def parse(cls, text: str) -> ProxyNetwork:
        """Read an address or a network. Raises ValueError."""
        try:
            network = ip_network(text)
        except ValueError as error:
            raise ValueError(f"{error}: give an address, or a network as 10.0.0.0/8") from None
        if network.prefixlen == 0:
            raise ValueError(f"{text} trusts every client: give the network of the proxies")
        return cls(network)

    def __contains__(self, address: IpAddress) -> bool:
        return address in self._network

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProxyNetwork) and self._network == other._network

    def __hash__(self) -> int:
        return hash(self._network)

    def __str__(self) -> str:
        return str(self._network)

    __repr__ = __str__


class ForwardedClients:
    """ASGI middleware that sets the client of requests through trusted proxies."""

    def __init__(self, app: ASGIApp, proxies: Sequence[ProxyNetwork]) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._proxies and scope["type"] == "http" and scope.get("client") is not None:
            host = scope["client"][0]
            client = client_behind(host, (value for name, value in scope["headers"] if name == FIELD), self._proxies)
            if client != host:
                scope = {**scope, "client": (client, 0)}
        await self._app(scope, receive, send)


def client_behind(host: str, fields: Iterable[bytes], proxies: Sequence[ProxyNetwork]) -> str:
    """Return the address of the client behind a peer; the last proxy's if one has not written an address."""
    nearest = _address(host)
    if nearest is None or not _is_trusted(nearest, proxies):
        return host
    chain = b",".join(fields).decode("latin-1").rsplit(",", PROXIES_MAX)[-PROXIES_MAX:]
    for text in reversed(chain):
        before = _address(text.strip())
        if before is None:
            break
        nearest = before
        if not _is_trusted(nearest, proxies):
            break
    return str(nearest)


def _is_trusted(address: IpAddress, proxies: Sequence[ProxyNetwork]) -> bool:
    return any(address in network for network in proxies)


def _address(text: str) -> IpAddress | None:
    """Read an address, which may have a port; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
