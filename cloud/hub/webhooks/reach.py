"""Addresses that requests of webhooks may reach.

A URL of a tenant must not lead into the hub's own network: its user could send requests there with the hub's rights.
The name is resolved once, and the connection goes to the address that was checked, so a name that gets another
address in between does not get past the check. Names are resolved in threads of their own: a name server that does not
answer delays nothing else.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from bridge.dialer import AttemptError
from cloud.hub.webhooks.limits import ADDRESS_S_MAX, NAMES_TENANT_MAX

_NAT64: Final = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that lead to the IPv4 address in their last 32 bits (RFC 6052)."""
_NOT_PUBLIC: Final = (IPv6Network("fec0::/10"), IPv6Network("::/96"), IPv6Network("64:ff9b:1::/48"))
"""Networks that `ipaddress` of some versions takes for public: site-local ones (RFC 3879), IPv4-compatible ones
(RFC 4291), and those of local translators (RFC 8215)."""
_Resolved = list[tuple[Any, ...]]


class ReachableNetwork:
    """Network that webhooks of tenants may reach, though it is not public."""

    __slots__ = ("_network",)

    def __init__(self, network: IPv4Network | IPv6Network) -> None:
        self._network = network

    @classmethod
    def parse(cls, text: str) -> ReachableNetwork:
        """Read an address or a network. Raises ValueError."""
        try:
            return cls(ip_network(text))
        except ValueError as error:
            raise ValueError(f"{error}: give an address, or a network as 10.0.0.0/8") from None

    def __contains__(self, address: IPv4Address | IPv6Address) -> bool:
        return address in self._network

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReachableNetwork) and self._network == other._network

    def __hash__(self) -> int:
        return hash(self._network)

    def __str__(self) -> str:
        return str(self._network)

    __repr__ = __str__


class AddressRefused(AttemptError):
    """The name leads to an address that the webhook may not reach, or may not be resolved now."""


class AnyAddresses:
    """Every address: for URLs that operators of the hub have set."""

    def __init__(self, threads: Executor) -> None:
        """`threads` resolve names."""
        self._threads = threads

    async def connect(self, host: str, port: int) -> socket.socket:
        """Connect to a host. Raises OSError."""
        resolving = self._threads.submit(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM)
        return await connect_first(await asyncio.wrap_future(resolving))


class PublicAddresses:
    """Public addresses, and the networks of the hub's configuration (`webhookNetworks`)."""

    def __init__(self, threads: Executor, networks: Sequence[ReachableNetwork] = ()) -> None:
        """`threads` resolve names."""
        self._threads = threads
        self._networks = networks
        self._resolving: Counter[str] = Counter()
        """Names that are being resolved, by tenant. A thread continues when its request has ended."""

    def cover(self, address: str) -> bool:
        """Return whether an IP address may be reached."""
        found = ip_address(address.partition("%")[0])
        if isinstance(found, IPv6Address) and (inside := _inside(found)) is not None:
            return self.cover(str(inside))
        if any(found in each for each in self._networks):
            return True
        return found.is_global and not found.is_multicast and not any(found in each for each in _NOT_PUBLIC)

    async def connect(self, tenant: str, host: str, port: int) -> socket.socket:
        """Connect to a host for a tenant. Raises `AddressRefused`, OSError."""
        found = [each for each in await self._resolve(tenant, host, port) if self.cover(str(each[4][0]))]
        if not found:
            raise AddressRefused(
                f"{host} is not a public address: an operator may permit its network (webhookNetworks in the hub's "
                "configuration)"
            )
        return await connect_first(found)

    async def _resolve(self, tenant: str, host: str, port: int) -> _Resolved:
        if self._resolving[tenant] >= NAMES_TENANT_MAX:
            raise AddressRefused(f"{host} waits for other names of the tenant: their name servers do not answer")
        self._resolving[tenant] += 1
        resolving: Future[_Resolved] = self._threads.submit(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM)
        loop = asyncio.get_running_loop()
        resolving.add_done_callback(lambda _done: _call_soon(loop, self._end_resolving, tenant))
        return await asyncio.wrap_future(resolving)

    def _end_resolving(self, tenant: str) -> None:
        self._resolving[tenant] -= 1
        if not self._resolving[tenant]:
            del self._resolving[tenant]


async def connect_first(found: _Resolved) -> socket.socket:
    """Connect to the first address that answers within `ADDRESS_S_MAX`. Raises OSError."""
    loop = asyncio.get_running_loop()
    error = OSError("the name has no address")
    for family, kind, protocol, _, address in found:
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            async with asyncio.timeout(ADDRESS_S_MAX):
                await loop.sock_connect(opened, address)
        except TimeoutError:
            opened.close()
            error = OSError(f"{address[0]} does not answer within {ADDRESS_S_MAX:g} s")
        except OSError as why:
            opened.close()
            error = why
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise error


def _call_soon(loop: asyncio.AbstractEventLoop, call: Any, tenant: str) -> None:
    """Call something on the loop, unless that has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, tenant)


def _inside(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to; None for one of its own."""
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour
