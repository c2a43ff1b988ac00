"""Under which names this node is reached over HTTP and WebSocket, and whose pages may use it. Pure.

A browser runs the pages of every site its user visits, and believes what it is told a name means: a page of
evil.example may have its own name mean 127.0.0.1 a second later (DNS rebinding), and is of one origin with this node
then. What it cannot choose are Host, which is its own name, Origin (RFC 6454) and Sec-Fetch-Site (Fetch Metadata). A
program that is no browser sends there what it likes, and needs no page to do harm: credentials are for it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

LOCALHOST: Final = "localhost"
EVERY_ORIGIN: Final = "*"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::[0-9]{0,5})?")
"""``Host`` (RFC 9110 section 7.2): a name or an address, and a port where it is not the scheme's."""
_ORIGIN: Final = re.compile(r"https?://(.+)")
_OWN_FETCHES: Final = frozenset(("same-origin", "none"))
"""Sec-Fetch-Site of what no page of another origin asked for: a page of ours did, or a person."""


class ForeignRequest(Exception):
    """The request is meant for somebody else, or comes from a page that may not use this node."""

    def __init__(self, status: int, text: str) -> None:
        """`status` is HTTP's."""
        super().__init__(text)
        self.status = status


class RequestOrigin(NamedTuple):
    """What a request says of its addressee and its author: fields of its head, None where it has none."""

    host: str | None
    origin: str | None = None
    fetch_site: str | None = None
    """Sec-Fetch-Site."""
    navigates: bool = False
    """A person goes to a page of ours, by a link somewhere: no script reads the answer."""


class Site:
    """The names of one node, and the rule for who may use it through a browser."""

    def __init__(self, hosts: Iterable[str], *, exposed: bool, machine: str = "", listed: Iterable[str] = ()) -> None:
        """`hosts` of the listeners; `exposed`: other machines reach one of them; `machine`: this one's name;
        `listed`: the further names a configuration gives, of a proxy or in the DNS."""
        listed_names = {name.lower().rstrip(".") for name in listed}
        own = machine.lower().partition(".")[0]
        own_names = {machine.lower(), own, f"{own}.local"} if exposed and own else set()
        self._exposed = exposed
        self._names = frozenset({host.lower() for host in hosts} | own_names | listed_names | {LOCALHOST})
        self._all_are_listed = bool(listed_names)

    def check(self, asked: RequestOrigin, *, guarded: bool, others: Collection[str] = ()) -> None:
        """Raise ForeignRequest unless the request may be served.

        `guarded`: the client has to authenticate. `others`: other origins with access to this route (CORS).
        """
        self.check_host(asked.host, guarded=guarded)
        if asked.origin is not None:
            if not (same_origin(asked.origin, asked.host) or asked.origin in others or EVERY_ORIGIN in others):
                raise ForeignRequest(403, "pages of other sites may not use this node")
        elif asked.fetch_site not in (None, *_OWN_FETCHES) and not asked.navigates and not others:
            raise ForeignRequest(403, "pages of other sites may not use this node")

    def check_host(self, host: str | None, *, guarded: bool) -> None:
        """Raise ForeignRequest unless `host`, a Host header, names this node. None (HTTP/1.0) passes: no browser."""
        if host is None:
            return
        name = host_name(host)
        if name is None:
            raise ForeignRequest(400, "Host is neither a name nor an address")
        if not self._knows(name, guarded=guarded):
            raise ForeignRequest(
                421,
                f"this node is not reached as {name[:100]}: use its address, or list that name (listeners.hostNames)",
            )

    def check_page_of_this_host(self, host: str | None, origin: str | None, *, guarded: bool) -> None:
        """The same for listeners that serve no page (WebSocket): those of any port of this host, and of the browser's
        own machine, may use them."""
        self.check_host(host, guarded=guarded)
        if origin is None:
            return
        of_page = _ORIGIN.fullmatch(origin)
        theirs = host_name(of_page[1]) if of_page else None
        ours = host_name(host or "")
        if theirs is None or not (theirs == ours or _is_loopback(theirs)):
            raise ForeignRequest(403, "pages of other sites may not use this node")

    def _knows(self, name: str, *, guarded: bool) -> bool:
        if name in self._names or _is_loopback(name):
            return True
        if not self._exposed:
            return False
        # An address is no name somebody could have mean us; and where credentials are asked for, a browser has none
        # for a page of a name we do not know.
        return _address(name) is not None or (guarded and not self._all_are_listed)


def host_name(host: str) -> str | None:
    """The name or address in a Host field, in lower case, without port and brackets; None where there is none."""
    found = _HOST.fullmatch(host)
    return found[1].lower().strip("[]").rstrip(".") or None if found else None


def same_origin(origin: str, host: str | None) -> bool:
    """True for a page of the very host and port that was asked. Schemes may differ: a proxy may have ended TLS."""
    found = _ORIGIN.fullmatch(origin.lower())
    return found is not None and host is not None and found[1] == host.lower()


def is_loopback(host: str) -> bool:
    """True for a name or address that only means the machine it is used on."""
    return _is_loopback(host.lower())


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return name == LOCALHOST if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
